"""Load on a real balancer that will be killed, and what its successor must know of it.

Job ``p`` gets policies and modes, job ``m`` measurements only: a decision would write them, too.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from libra.balancer.policy import decode_policy
from libra.balancer.wire import encode_report
from tests.running import MSGPACK, RunningBalancer, make_report

FLUSH_INTERVAL_S = 0.3
# A balancer that shares its cores with others may be late by this much.
_SCHEDULING_S = 1.0


@dataclass(kw_only=True)
class Load:
    """What was acknowledged and shown so far, over all lives of the balancer.

    Attributes:
        policies: checksum by acknowledged version.
        modes: the last acknowledged one, and one that was asked for since.
        seen: the newest version that any reader got.
        steps: time at which both ranks' reports of a step were acknowledged.
        judged: steps that had to be there.
        slowest_s: the longest that a commit took, as far as publications tell; none waits for less.
        asked_s: when one was begun that is not answered yet: a disk that stands still answers none.
    """

    policies: dict[int, str] = field(default_factory=dict)
    modes: set[str] = field(default_factory=lambda: {"observe"})
    seen: int = 0
    steps: dict[int, float] = field(default_factory=dict)
    next_step: int = 0
    judged: int = 0
    slowest_s: float = 0.0
    asked_s: float | None = None
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def on(self, running: RunningBalancer) -> Iterator[None]:
        """Report, publish and read until the end of the block, or of the balancer."""
        stop, self.asked_s = threading.Event(), None
        works = (self._report, self._publish, self._read)
        threads = [threading.Thread(target=self._run, args=(w, running.url, stop)) for w in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)

    def judge(self, running: RunningBalancer, killed_s: float) -> None:
        """Assert that a new balancer knows all that it must of the one that was killed then."""
        assert self.faults == []
        if self.asked_s is not None:
            self.slowest_s = max(self.slowest_s, killed_s - self.asked_s)
        if self.policies or self.seen:
            known = {
                row["version"]: row["checksum"] for row in running.view("p/policies")["policies"]
            }
            oldest = min(known, default=0)
            must = {v: c for v, c in self.policies.items() if v >= oldest}
            assert must.items() <= known.items()
            assert self._version(running.client) >= max(self.seen, *self.policies, 0)
        if running.client.get("/api/v1/jobs/p").status_code == 200:
            mode = running.view("p")["mode"]
            assert mode in self.modes
            self.modes = {mode}
        self._judge_steps(running, killed_s - FLUSH_INTERVAL_S - self.slowest_s - _SCHEDULING_S)

    def _judge_steps(self, running: RunningBalancer, safe_s: float) -> None:
        answer = running.client.get("/api/v1/jobs/m/skew?last=2000")
        known = set(answer.json()["steps"]) if answer.status_code == 200 else set()
        must = {step for step, acked_s in self.steps.items() if acked_s < safe_s}
        lost = {step: safe_s - self.steps[step] for step in must - known}
        assert not lost, f"acknowledged and lost, and by so many seconds too old for that: {lost}"
        self.judged += len(must)
        # What was rightly lost stays so.
        self.steps = {step: at_s for step, at_s in self.steps.items() if step in known}

    def _run(self, work: object, url: str, stop: threading.Event) -> None:
        assert callable(work)
        try:
            with httpx.Client(base_url=url, timeout=20) as client:
                for job in "pm":
                    self._send(client, job, 0)
                while not stop.is_set():
                    work(client)
        except httpx.HTTPError:
            return  # it was killed
        except Exception as error:
            self.faults.append(repr(error))

    def _report(self, client: httpx.Client) -> None:
        step = self.next_step
        self.next_step += 1
        if all(self._send(client, "m", step, rank).status_code == 202 for rank in range(2)):
            self.steps[step] = time.monotonic()

    def _publish(self, client: httpx.Client) -> None:
        mode = "frozen" if len(self.policies) % 2 else "observe"
        self.modes.add(mode)
        start = self.asked_s = time.monotonic()
        if client.put("/api/v1/jobs/p/mode", json={"mode": mode}).status_code == 200:
            self.modes = {mode}
        answer = client.post("/api/v1/jobs/p/publish", json={"pooling": True, "author": "test"})
        self.asked_s = None
        if answer.status_code == 200:
            self.slowest_s = max(self.slowest_s, time.monotonic() - start)
            row = answer.json()
            self.policies[row["version"]] = row["checksum"]

    def _read(self, client: httpx.Client) -> None:
        version = self._version(client)
        if version < self.seen:
            self.faults.append(f"version {version} after {self.seen}")
        self.seen = max(self.seen, version)

    @staticmethod
    def _version(client: httpx.Client) -> int:
        answer = client.get("/api/v1/jobs/p/policy")
        answer.raise_for_status()
        return decode_policy(answer.content).version

    @staticmethod
    def _send(client: httpx.Client, job: str, step: int, rank: int = 0) -> httpx.Response:
        body = encode_report(make_report(job, sequence=step, rank=rank))
        return client.post(f"/api/v1/jobs/{job}/reports", content=body, headers=MSGPACK)
