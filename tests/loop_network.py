"""A network that delays, loses, repeats and reorders reports, as seeded as the rest.

Time is counted in steps. The sender repeats a report until it hears an answer, and an answer can
be lost as well: then the report arrives once more.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from libra.balancer.wire import Report

# An agent gives up on a report that was lost this often; the gap in its numbers stays.
_TRIES = 8


@dataclass(frozen=True, kw_only=True)
class Network:
    """How bad it is.

    Attributes:
        delay_steps: mean of a message's exponential delay.
        loss: share of messages, reports and answers, that are lost.
        resend_steps: the sender's patience.
    """

    delay_steps: float = 0.5
    loss: float = 0.0
    resend_steps: float = 2.0


class Wire:
    """Reports on their way."""

    def __init__(self, network: Network, rng: np.random.Generator) -> None:
        self._network, self._rng = network, rng
        self._flying: list[tuple[float, int, Report]] = []
        self._sent = 0

    def send(self, report: Report, step: float) -> None:
        """Take a report; it arrives never, once or several times."""
        for _ in range(_TRIES):
            delay = self._network.delay_steps * self._rng.exponential()
            if self._rng.random() >= self._network.loss:
                self._sent += 1
                heapq.heappush(self._flying, (step + delay, self._sent, report))
                if self._rng.random() >= self._network.loss:
                    return
            step += self._network.resend_steps

    def arrived(self, step: float) -> list[Report]:
        """Return what arrives up to this moment, in its order of arrival."""
        reports = []
        while self._flying and self._flying[0][0] <= step:
            reports.append(heapq.heappop(self._flying)[-1])
        return reports
