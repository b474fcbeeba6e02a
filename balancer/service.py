"""All jobs of one balancer: reports in, durable state and live events out.

Everything runs on the event loop's thread; only the store has its own. A job's new policy is
shown to its agents, and its events to pages, when the write that holds them is on disk.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from libra.balancer.broadcast import EventStream
from libra.balancer.drafts import RollbackRequest
from libra.balancer.events import Event
from libra.balancer.job import Job
from libra.balancer.policy import Policy
from libra.balancer.settings import ServiceSettings
from libra.balancer.state import Mode
from libra.balancer.store import Store, StoredJob, StoreError, StoreFullError, Write
from libra.balancer.wire import Report, ReportError, decode_report

logger = logging.getLogger(__name__)

# A job's reports are replaced by a snapshot once they outweigh it: so the disk takes no more
# than about twice what the agents send, however large a job's state is.
_SNAPSHOT_FLOOR_BYTES = 1 << 20
# What may become of a report: each has a series from the start.
RESULTS = (
    *("accepted", "duplicate", "queue_full", "disk"),
    *("media_type", "too_large", "too_slow", "malformed", "invalid", "wrong_job"),
    *("not_finite", "negative", "absurd", "inconsistent", "world_size", "kinds"),
)
# Replaying reports could decide otherwise under a newer Libra, so what others rely on is
# stored as state at once.
_DECISIONS = frozenset({"policy", "effect", "mode"})


class LiveJob:
    """A job with its event stream and the policy that is safe on disk; ``polls`` wait for one."""

    def __init__(self, job: Job, stream: EventStream) -> None:
        self.job = job
        self.stream = stream
        self.policy = job.policy
        self.polls = 0
        self.snapshot_due = True
        self.snapshot_bytes = 0
        self.report_bytes = 0
        self._changed = asyncio.Event()

    def show_policy(self, policy: Policy) -> None:
        """Let agents see a policy, and wake those that wait for one."""
        if policy != self.policy:
            self.policy = policy
            self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, known: Callable[[Policy], bool], timeout_s: float) -> Policy | None:
        """Return the policy if it is not known; else wait for a change or the timeout."""
        if known(self.policy):
            self.polls += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            self.polls -= 1
        return None if known(self.policy) else self.policy


class Service:
    """Take reports and commands of all jobs; ``results`` counts reports by what became of them."""

    def __init__(
        self, store: Store, settings: ServiceSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self.settings = settings
        self.jobs: dict[str, LiveJob] = {}
        self.results: Counter[str] = Counter()
        self.closing = False
        self._clock = clock
        # Event numbers grow across restarts: who followed an earlier run is told to resync.
        self._first_id = int(clock() * 1000)

    def now_s(self) -> float:
        """Return Unix time."""
        return self._clock()

    def restore(self) -> None:
        """Bring back every stored job; one that cannot be read begins anew, with a log line."""
        for stored in self.store.load():
            try:
                self._add(self._rebuild(stored))
            except Exception:
                logger.exception("The stored state of job %s cannot be read.", stored.name)

    async def report(self, report: Report, body: bytes) -> bool:
        """Fold in a report, ``body`` its msgpack; return, once stored, whether it was new.

        A duplicate is stored too: its first copy may be one that the disk refused. Raises
        ``ReportError`` for a report that the job refuses, ``StoreError`` when the disk does.
        """
        try:
            self._check_room()
            live = self.jobs.get(report.job)
            job = live.job if live else self._new_job(report.job)
            fresh = not job.is_duplicate(report)
            now_s = self.now_s()
            events = job.apply(report, now_s)
            await self._save(live or self._add(job), events, now_s, report=body)
        except ReportError as error:
            self.results[error.reason] += 1
            raise
        except StoreError as error:
            self.results["queue_full" if isinstance(error, StoreFullError) else "disk"] += 1
            raise
        self.results["accepted" if fresh else "duplicate"] += 1
        return fresh

    def refuse(self, name: str, reason: str) -> None:
        """Count a report that was refused before it reached its job."""
        self.results[reason] += 1
        live = self.jobs.get(name)
        if live is not None:
            live.job.reject()

    async def set_mode(self, live: LiveJob, mode: Mode) -> None:
        """Change a job's mode; return once stored."""
        self._check_room()
        now_s = self.now_s()
        await self._save(live, live.job.set_mode(mode, now_s), now_s)

    async def publish(
        self, live: LiveJob, policy: Policy, *, author: str = "operator"
    ) -> dict[str, Any]:
        """Publish a policy by hand; return its row once stored."""
        self._check_room()
        now_s = self.now_s()
        events = live.job.publish(policy, now_s, author=author)
        await self._save(live, events, now_s)
        return events[-1].data

    async def roll_back(self, live: LiveJob, request: RollbackRequest) -> dict[str, Any]:
        """Bring back an earlier policy; return its row once stored.

        Raises ``ValueError``, with nothing changed, for a version that is not known.
        """
        self._check_room()
        now_s = self.now_s()
        events = live.job.rollback(
            now_s,
            to_version=request.to_version,
            author=request.author,
            reason=request.reason,
        )
        await self._save(live, events, now_s)
        return events[-1].data

    def end_streams(self) -> None:
        """Let every open event stream and long poll end; no more begin."""
        self.closing = True
        for live in self.jobs.values():
            live.stream.close()
            live.wake()

    def _check_room(self) -> None:
        # Before the job changes: a refused report must leave no trace. Only this thread
        # submits, so the room cannot vanish in between.
        if self.store.full:
            raise StoreFullError(f"{self.store.capacity} writes wait for the disk already")

    def _new_job(self, name: str) -> Job:
        return Job(name, mode=self.settings.mode, settings=self.settings.job)

    def _add(self, job: Job) -> LiveJob:
        stream = EventStream(first_id=self._first_id, heartbeat_s=self.settings.heartbeat_s)
        live = self.jobs[job.name] = LiveJob(job, stream)
        return live

    def _rebuild(self, stored: StoredJob) -> Job:
        if stored.snapshot is None:
            job = self._new_job(stored.name)
        else:
            job = Job.load(stored.snapshot, self.settings.job)
        for at_s, body in stored.reports:
            job.apply(decode_report(body), at_s)
        return job

    async def _save(
        self, live: LiveJob, events: list[Event], now_s: float, report: bytes | None = None
    ) -> None:
        name = live.job.name
        if report is None or self._wants_snapshot(live, events, len(report)):
            snapshot = live.job.dump()
            live.snapshot_due, live.snapshot_bytes, live.report_bytes = False, len(snapshot), 0
            write = Write(job=name, at_s=now_s, snapshot=snapshot)
        else:
            write = Write(job=name, at_s=now_s, report=report)
        stored = asyncio.wrap_future(self.store.submit(write))
        # A callback, and first: it must run, in order, even if the request is cancelled, and
        # before the request is answered.
        stored.add_done_callback(partial(self._stored, live, events, live.job.policy))
        await asyncio.shield(stored)

    def _wants_snapshot(self, live: LiveJob, events: list[Event], num_bytes: int) -> bool:
        live.report_bytes += num_bytes
        outweighed = live.report_bytes > max(_SNAPSHOT_FLOOR_BYTES, live.snapshot_bytes)
        return live.snapshot_due or outweighed or any(e.kind in _DECISIONS for e in events)

    def _stored(
        self, live: LiveJob, events: list[Event], policy: Policy, stored: "asyncio.Future[None]"
    ) -> None:
        if stored.cancelled() or stored.exception() is not None:
            # The job in memory is ahead of the disk: the next write catches up as a whole.
            live.snapshot_due = True
            return
        live.show_policy(policy)
        for event in events:
            live.stream.publish(event.kind, event.data)
