"""All jobs of one balancer: reports in, durable decisions and live events out.

Everything runs on the event loop's thread; only the store has its own. A report is folded in
memory and written with its job within ``flush_interval_s``. A decision, that is a policy, an
effect or a mode, is shown to agents and pages when the write that holds it is on disk.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from libra.balancer.batch import Batch, BatchOutcome, batch_of_one
from libra.balancer.broadcast import EventStream
from libra.balancer.commands import Commands
from libra.balancer.events import View
from libra.balancer.flush import Flusher
from libra.balancer.ingest import IngestQueue
from libra.balancer.insight import Insight
from libra.balancer.job import Job
from libra.balancer.leadership import Role
from libra.balancer.live_job import LiveJob
from libra.balancer.settings import ServiceSettings
from libra.balancer.shelf import Shelf, TooManyJobsError
from libra.balancer.storage import StoreError, StoreFullError, StoreLike
from libra.balancer.store_settings import StoreSettings
from libra.balancer.tally import Tally
from libra.balancer.telemetry import Telemetry
from libra.balancer.thoughts import Thoughts
from libra.balancer.turns import Turns
from libra.balancer.upkeep import Upkeep
from libra.balancer.waiters import Waker
from libra.balancer.wire import Report, ReportError

# What may become of a report, a batch counted row by row: each has a series from the start.
RESULTS = (
    *("accepted", "duplicate", "late", "queue_full", "jobs", "disk"),
    *("media_type", "encoding", "too_large", "too_slow", "malformed", "invalid", "wrong_job"),
    *("not_finite", "negative", "absurd", "inconsistent", "world_size", "kinds", "clock"),
)
# The queue may run full for a moment; for longer the balancer cannot keep up.
_FULL_TOO_LONG_S = 1.0
_JOBS_STREAM_BYTES = 8 << 20


class Service(Commands):
    """Take reports and commands of all jobs.

    Attributes:
        jobs: the active ones; ``shelf`` has those that ended.
        results: counts reports by what became of them.
        role: a standby writes nothing and knows nothing.
        insight: finds out what takes long.
        restoring: are jobs being read from the store?
        warnings: what went wrong at the start and is over, for people.
    """

    def __init__(
        self,
        store: StoreLike,
        settings: ServiceSettings | None = None,
        clock: Callable[[], float] = time.time,
        *,
        storing: StoreSettings | None = None,
    ) -> None:
        self.storing = storing or StoreSettings()
        super().__init__(store, Flusher(store, self.storing.flush_interval_s, clock), clock)
        self.settings = settings or ServiceSettings()
        self.jobs: dict[str, LiveJob] = {}
        self.results: Counter[str] = Counter()
        self.telemetry = Telemetry()
        self.closing = False
        self.role: Role = "active"
        self.restoring = False
        self.warnings: list[str] = []
        self.insight = Insight()
        self._waker = Waker()
        # Of all jobs, for pages that list them; a second's changes of many jobs must fit.
        self.jobs_stream = self._new_stream(max_bytes=_JOBS_STREAM_BYTES)
        self.shelf = Shelf(store, self.settings.job, self._bring)
        self.thoughts = Thoughts(self._think)
        self.queue = IngestQueue(
            self._fold,
            self.thoughts.one,
            capacity=self.settings.queue_size,
            max_bytes=self.settings.queue_bytes,
        )
        # pyright sees this module twice where modules import each other.
        self._upkeep = Upkeep(self)  # pyright: ignore[reportArgumentType]

    @property
    def set_aside(self) -> int:
        """Damaged stores, and jobs that could not be read, that were put aside."""
        return len(self.warnings) + self.shelf.set_aside

    def restore(self, timeout_s: float = 300.0) -> None:
        """Bring back every job that had not ended; callable from any thread, before serving.

        Charts come later, by ``start``. Raises ``StoreError``.
        """
        self.restoring = True
        try:
            # At once: the event loop may be looking at the jobs.
            self.jobs = {job.name: self._bring(job) for job in self._upkeep.read_jobs(timeout_s)}
        finally:
            self.restoring = False

    def start(self) -> None:
        """Begin the upkeep: charts of restored jobs, what ended, what is too old."""
        for live in self.jobs.values():
            if live.job.has_whole_steps:
                self._think(live)
        self._upkeep.start()

    def forget_memory(self) -> None:
        """Drop all jobs from memory, unwritten: another balancer has them now."""
        self._upkeep.stop()
        lives = [*self.jobs.values(), *self.shelf.loaded.values()]
        self.jobs.clear()
        self.shelf.loaded.clear()
        self.shelf.fill(())
        for live in lives:
            self.flusher.abandon(live)
            live.retire()

    def hang_up(self) -> None:
        """End event streams and long polls: who comes back may find another balancer."""
        self.jobs_stream.close()
        self.jobs_stream = self._new_stream(max_bytes=_JOBS_STREAM_BYTES)
        for live in [*self.jobs.values(), *self.shelf.loaded.values()]:
            live.retire()
            live.stream = self._new_stream()

    async def take(self, batch: Batch, num_bytes: int = 0) -> BatchOutcome:
        """Fold in a batch; return, once it is in memory, what became of its rows.

        Args:
            num_bytes: of the body that it came in; all bodies that wait are bounded together.

        Raises:
            ReportError: all of it is refused.
            StoreFullError: try again later.
            StoreError: its job is in the store, which cannot be read.
        """
        self.telemetry.ingest_bytes += num_bytes
        try:
            with self.telemetry.ingest_duration.time():
                if batch.job not in self.jobs and batch.job in self.shelf:
                    await self._wake_up(batch.job)
                outcome = await self.queue.put(batch, num_bytes)
        except ReportError as error:
            self.results[error.reason] += len(batch)
            raise
        except StoreError as error:
            self.results[_result(error)] += len(batch)
            raise
        self.results["accepted"] += outcome.accepted
        self.results["duplicate"] += outcome.duplicates
        self.results["late"] += outcome.late
        self.results.update(refused.reason for refused in outcome.refused)
        return outcome

    async def report(self, report: Report, num_bytes: int = 0) -> BatchOutcome:
        """Fold in one report, as ``take`` does."""
        return await self.take(batch_of_one(report), num_bytes)

    def refuse(self, name: str, reason: str) -> None:
        """Count a report that was refused before it reached its job."""
        self.results[reason] += 1
        live = self.jobs.get(name)
        if live is not None:
            live.job.reject()

    async def find(self, name: str) -> LiveJob | None:
        """Return a job, from the store if it ended; None if there is none."""
        live = self.jobs.get(name)
        if live is None:
            return await self.shelf.find(name)
        self.thoughts.at_once(live)
        return live

    async def summaries(self) -> AsyncIterator[View]:
        """Yield the summaries of all jobs, active and ended, with turns for others in between."""
        now_s = self.now_s()
        async for view in self.insight.summaries(list(self.jobs.values()), now_s):
            yield view
        turns = Turns()
        for view in self.shelf.views(now_s):
            if view["job"] not in self.jobs:
                yield view
            await turns.give()

    async def forget(self, name: str) -> bool:
        """Delete a job and all that is stored of it; return whether there was one."""
        live = await self.find(name)
        if live is None:
            return False
        await self.delete(live)
        self.jobs.pop(name, None)
        self.shelf.remove(name)
        live.retire()
        return True

    def not_ready(self) -> str | None:
        """Say why no reports can be taken; None while they can."""
        if self.closing:
            return "the balancer is stopping"
        if self.role == "standby":
            return "another balancer is active"
        if self.restoring:
            return "jobs are being read from the store"
        if not self.store.healthy:
            return "the last write to the store failed"
        if self.queue.full_for_s > _FULL_TOO_LONG_S:
            return "too many reports wait to be taken in"
        return "too many writes wait for the disk" if self.store.full else None

    def end_streams(self) -> None:
        """Let every open event stream and long poll end; no more begin."""
        self.closing = True
        self.jobs_stream.close()
        for live in [*self.jobs.values(), *self.shelf.loaded.values()]:
            live.retire()

    async def close(self, timeout_s: float = 10.0) -> None:
        """End streams, take in what waits, write all jobs and close the store."""
        self.end_streams()
        await self._upkeep.close(timeout_s)
        self.store.close(timeout_s)

    def _fold(self, batches: Sequence[Batch]) -> Sequence[BatchOutcome | Exception]:
        """Fold in batches of one job; return what became of each."""
        if self.role == "standby":
            # They waited in the queue meanwhile: here nobody would ever write them.
            return [StoreError("another balancer has taken over")] * len(batches)
        live = self.jobs.get(batches[0].job)
        if live is None:
            return [self._fold_first(batches[0]), *(self._fold(batches[1:]) if batches[1:] else ())]
        outcomes = live.job.take_all(batches, self.now_s(), later=True)
        self._note(live, [one for one in outcomes if isinstance(one, BatchOutcome)])
        if live.job.has_whole_steps:
            self.thoughts.put(live)
        return outcomes

    def _fold_first(self, batch: Batch) -> BatchOutcome | Exception:
        """Make a job of a batch, if anything of it is true."""
        try:
            self._check_room()
            job = self._new_job(batch.job)
            outcome = job.take(batch, self.now_s())
        except (StoreError, ReportError) as error:
            return error
        if outcome.accepted:
            live = self.jobs[job.name] = self._bring(job)
            self._note(live, [outcome])
        return outcome

    def _note(self, live: LiveJob, outcomes: Sequence[BatchOutcome]) -> None:
        if outcomes:
            live.finished = False
            events = [event for outcome in outcomes for event in outcome.events]
            self.flusher.changed(live, at_once=live.changed(events, self.now_s()))

    def _think(self, live: LiveJob) -> None:
        if self.role == "active" and not live.gone:
            events = live.job.think(self.now_s())
            self.flusher.changed(live, at_once=live.changed(events, self.now_s()))

    def _new_job(self, name: str) -> Job:
        return Job(name, mode=self.settings.mode, settings=self.settings.job)

    def _bring(self, job: Job) -> LiveJob:
        return LiveJob(job, self._new_stream(), Tally(self.telemetry), self._waker)

    def _new_stream(self, max_bytes: int = 1 << 20) -> EventStream:
        return EventStream(
            # They grow across restarts: who followed an earlier run is told to resync.
            first_id=int(self._clock() * 1000),
            max_bytes=max_bytes,
            heartbeat_s=self.settings.heartbeat_s,
            waker=self._waker,
        )

    async def _wake_up(self, name: str) -> None:
        """Make a job that ended active again."""
        live = await self.shelf.find(name)
        if live is not None and name not in self.jobs and name in self.shelf:
            self._check_room()
            self.shelf.remove(name)
            live.used_s = self.now_s()
            self.jobs[name] = live

    def _check_room(self) -> None:
        most = self.settings.max_jobs
        if len(self.jobs) >= most:
            raise TooManyJobsError(f"max_jobs={most}: so many jobs are active already")


def _result(error: StoreError) -> str:
    if isinstance(error, TooManyJobsError):
        return "jobs"
    return "queue_full" if isinstance(error, StoreFullError) else "disk"
