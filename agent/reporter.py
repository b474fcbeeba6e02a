"""Report what the meter saw: a bounded ring of steps in, one report at a time out.

Training only appends to the ring. Sending, waiting and failing happen on the agent's thread.
"""

import asyncio
import contextlib
import logging
import math
import random
import uuid
from collections import deque

import msgspec

from libra.agent.backoff import Backoff
from libra.agent.channel import Answer, Channel, NoAnswerError
from libra.agent.meter import StepMeter
from libra.agent.settings import AgentSettings
from libra.balancer.wire import Coordinates, Report, StepTotals, encode_report

logger = logging.getLogger(__name__)

# Steps may take minutes; the balancer takes a job that is silent for 30 s for stale.
HEARTBEAT_S = 10.0


class Reporter:
    """Send one rank's reports, each until it is acknowledged or refused.

    A report is retried byte for byte under its own sequence number, so the balancer can tell a
    retry from news; meanwhile steps gather in the ring and moments in the meter.

    Attributes:
        coordinates: where the rank stands; set once it is known.
        sent: reports acknowledged.
        refused: reports that the balancer will never take; dropped and counted.
    """

    def __init__(self, settings: AgentSettings, meter: StepMeter, channel: Channel) -> None:
        self.coordinates = Coordinates(pp=settings.pp_rank)
        self.sent = 0
        self.refused = 0
        self._settings = settings
        self._meter = meter
        self._channel = channel
        self._agent = uuid.uuid4().hex
        self._sequence = 0
        self._ring: deque[StepTotals] = deque(maxlen=settings.ring_steps)
        self._pushed = 0
        self._drawn = 0
        self._lost = 0
        self._pending: Report | None = None
        self._last_sent_s = -math.inf
        self._random = random.Random()
        self._backoff = Backoff(
            "Reporting to the balancer",
            first_delay_s=settings.first_retry_s,
            max_delay_s=settings.max_retry_s,
        )

    @property
    def dropped(self) -> int:
        """Observations and steps lost so far: out of the ring, refused, or never reportable."""
        # Read in this order against push: a step in between is missed once, never miscounted.
        pushed = self._pushed
        overrun = max(0, pushed - self._drawn - len(self._ring))
        return overrun + self._lost + self._meter.dropped

    @property
    def unsent_steps(self) -> int:
        """Steps that wait in the ring or in the report under way."""
        return len(self._ring) + (len(self._pending.steps) if self._pending else 0)

    def push(self, totals: StepTotals) -> None:
        """Queue a step's totals; the oldest makes room. For the training thread."""
        self._ring.append(totals)
        self._pushed += 1

    async def run(self) -> None:
        """Report every ``interval_s``, for ever."""
        # Ranks start together; they should not report together.
        await asyncio.sleep(self._settings.interval_s * self._random.random())
        while True:
            try:
                await self._send()
                self._backoff.succeeded()
                pause_s = self._settings.interval_s * self._random.uniform(0.9, 1.1)
            except NoAnswerError as error:
                pause_s = self._backoff.failed(error, retry_after_s=error.retry_after_s)
            await asyncio.sleep(pause_s)

    async def flush(self) -> None:
        """Send what is pending, then what came since; give up at the first failure."""
        with contextlib.suppress(NoAnswerError):
            if self._pending is not None:
                await self._send()
            await self._send()

    async def _send(self) -> None:
        """Send the pending report or a new one; raise ``NoAnswerError`` if it stays pending."""
        report = self._pending = self._pending or self._draw()
        if report is None:
            return
        answer = await self._channel.ask(
            "POST",
            f"/api/v1/jobs/{report.job}/reports",
            headers={"content-type": "application/msgpack"},
            body=encode_report(report),
            timeout_s=self._settings.timeout_s,
        )
        if answer.status == 202 and _accepted(answer.body):
            self._pending = None
            self.sent += 1
            self._last_sent_s = asyncio.get_running_loop().time()
        elif 400 <= answer.status < 500 and answer.status != 429:
            self._pending = None
            self._refuse(report, answer)
        else:
            raise NoAnswerError(f"status {answer.status}", retry_after_s=answer.retry_after_s)

    def _draw(self) -> Report | None:
        """Return a report of all there is; None if that is nothing and none is due."""
        moments, waves = self._meter.take_moments(), self._meter.take_waves()
        steps = [self._ring.popleft() for _ in range(len(self._ring))]
        self._drawn += len(steps)
        silent_s = asyncio.get_running_loop().time() - self._last_sent_s
        if not (moments or waves or steps) and silent_s < HEARTBEAT_S:
            return None
        self._sequence += 1
        return Report(
            schema=1,
            job=self._settings.job,
            attempt=self._settings.attempt,
            node=self._settings.node,
            agent=self._agent,
            sequence=self._sequence,
            rank=self._settings.rank,
            world_size=self._settings.world_size,
            coordinates=self.coordinates,
            moments=moments,
            steps=steps,
            waves=waves,
            dropped=self.dropped,
            set_aside=self._meter.set_aside,
        )

    def _refuse(self, report: Report, answer: Answer) -> None:
        """Count a report that no retry can mend, and say so the first time."""
        self.refused += 1
        self._lost += len(report.steps) + sum(int(kind.sums[0]) for kind in report.moments)
        if self.refused == 1:
            logger.warning(
                "The balancer refused report %d with status %d, and it is dropped; further "
                "refusals are only counted. It said: %s",
                report.sequence,
                answer.status,
                answer.body[:300].decode(errors="replace"),
            )


def _accepted(body: bytes) -> bool:
    """Tell the balancer's own acknowledgement from another server's 202."""
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    return isinstance(answer, dict) and answer.get("accepted") is True
