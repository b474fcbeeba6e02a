"""A job that reports and an operator who publishes until the balancer dies: what it promised."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import httpx

from libra.balancer.wire import encode_report
from tests.running import MSGPACK, make_report

_RANKS = 2
_MODES = ("observe", "frozen")
_STEP_S = 0.02
_PUBLISH_S = 0.1
_TIMEOUT_S = 10.0


@dataclass(kw_only=True)
class Acknowledged:
    """What a balancer had acknowledged when it was killed.

    Attributes:
        policies: checksum by version.
        mode, tried: the newest acknowledged, and one that was sent after it.
        steps: when the last rank's report of a step was acknowledged.
    """

    policies: dict[int, str] = field(default_factory=dict)
    mode: str | None = None
    tried: str | None = None
    steps: dict[int, float] = field(default_factory=dict)
    killed_s: float = 0.0


class KillLoad:
    """Threads that load a balancer, one after the other.

    Attributes:
        acknowledged: by the newest one, and policies by all of them; None before any.
        totals: policies and steps that were acknowledged so far.
    """

    job: ClassVar[str] = "killed"

    def __init__(self) -> None:
        self.acknowledged: Acknowledged | None = None
        self.totals = (0, 0)
        self._steps = itertools.count()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, url: str) -> None:
        """Load the balancer at an address."""
        before = self.acknowledged
        current = self.acknowledged = Acknowledged()
        if before is not None:
            current.mode, current.tried = before.mode, before.tried
            current.policies = dict(before.policies)
        self._ended.clear()
        self._threads = [
            threading.Thread(target=self._until_ended, args=(url, what), daemon=True)
            for what in (self._report, self._publish)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, killed_s: float) -> None:
        """End the load; nothing that is acknowledged after the kill counts."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * _TIMEOUT_S)
        current = self.acknowledged
        assert current is not None
        current.killed_s = killed_s
        self.totals = len(current.policies), self.totals[1] + len(current.steps)

    def _until_ended(self, url: str, what: Callable[[httpx.Client], None]) -> None:
        try:
            with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
                while not self._ended.is_set():
                    what(client)
        except httpx.HTTPError:
            return  # it was killed

    def _report(self, client: httpx.Client) -> None:
        step = next(self._steps)
        current = self.acknowledged
        assert current is not None
        for rank in range(_RANKS):
            report = make_report(self.job, sequence=step, rank=rank)
            answer = client.post(
                f"/api/v1/jobs/{self.job}/reports", content=encode_report(report), headers=MSGPACK
            )
            if answer.status_code != 202:
                return
        current.steps[step] = time.monotonic()
        self._ended.wait(_STEP_S)

    def _publish(self, client: httpx.Client) -> None:
        current = self.acknowledged
        assert current is not None
        path = f"/api/v1/jobs/{self.job}"
        answer = client.post(f"{path}/publish", json={"reason": "again", "author": "kill"})
        if answer.status_code == 200:
            row = answer.json()
            current.policies[row["version"]] = row["checksum"]
            current.tried = _MODES[row["version"] % 2]
            answer = client.put(f"{path}/mode", json={"mode": current.tried})
            if answer.status_code == 200:
                current.mode = current.tried
        self._ended.wait(_PUBLISH_S)
