"""Reports of all jobs, taken in: a job is made for the first, and thinks after the last of a step.

A report is folded in memory and written with its job within ``flush_interval_s``. A decision, that
is a policy, an effect or a mode, is shown to agents and pages when the write that holds it is on
disk.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from libra.balancer.batch import Batch, BatchOutcome, batch_of_one
from libra.balancer.broadcast import EventStream
from libra.balancer.commands import Commands
from libra.balancer.flush import Flusher
from libra.balancer.ingest import IngestQueue
from libra.balancer.job import Job
from libra.balancer.leadership import Role
from libra.balancer.live_job import LiveJob
from libra.balancer.settings import ServiceSettings
from libra.balancer.shelf import Shelf, TooManyJobsError
from libra.balancer.storage import StoreError, StoreFullError, StoreLike
from libra.balancer.tally import Tally
from libra.balancer.telemetry import Telemetry
from libra.balancer.thoughts import Thoughts
from libra.balancer.waiters import Waker
from libra.balancer.wire import Report, ReportError

# What may become of a report, a batch counted row by row: each has a series from the start.
RESULTS = (
    *("accepted", "duplicate", "late", "queue_full", "jobs", "disk"),
    *("media_type", "encoding", "too_large", "too_slow", "malformed", "invalid", "wrong_job"),
    *("not_finite", "negative", "absurd", "inconsistent", "world_size", "kinds", "clock"),
)

# Between a few pages that get an event and the next few: a thousand have it in an eighth of a
# second, and most of the event loop is left to reports meanwhile.
_PAGE_PAUSE_S = 0.001


class Taking(Commands):
    """Take reports of all jobs in.

    Attributes:
        jobs: the active ones; ``shelf`` has those that ended.
        results: counts reports by what became of them.
        role: a standby writes nothing and knows nothing.
    """

    def __init__(
        self,
        store: StoreLike,
        flusher: Flusher,
        clock: Callable[[], float],
        settings: ServiceSettings,
    ) -> None:
        super().__init__(store, flusher, clock)
        self.settings = settings
        self.jobs: dict[str, LiveJob] = {}
        self.shelf = Shelf(store, settings.job, self._bring)
        self.results: Counter[str] = Counter()
        self.telemetry = Telemetry()
        self.role: Role = "active"
        self.thoughts = Thoughts(self._think)
        self.queue = IngestQueue(
            self._fold,
            self.thoughts.one,
            capacity=settings.queue_size,
            max_bytes=settings.queue_bytes,
        )
        self._waker = Waker()
        self._page_waker = Waker(pause_s=_PAGE_PAUSE_S)

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
            waker=self._page_waker,
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
