"""All jobs of one balancer: reports in, durable decisions and live events out.

Everything runs on the event loop's thread; only the store has its own.
"""

import time
from collections.abc import AsyncIterator, Callable

from libra.balancer.events import View
from libra.balancer.flush import Flusher
from libra.balancer.insight import Insight
from libra.balancer.live_job import LiveJob
from libra.balancer.settings import ServiceSettings
from libra.balancer.storage import StoreLike
from libra.balancer.store_settings import StoreSettings
from libra.balancer.taking import Taking
from libra.balancer.turns import Turns
from libra.balancer.upkeep import Upkeep

# The queue may run full for a moment; for longer the balancer cannot keep up.
_FULL_TOO_LONG_S = 1.0
_JOBS_STREAM_BYTES = 8 << 20


class Service(Taking):
    """Take reports and commands of all jobs.

    Attributes:
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
        flusher = Flusher(store, self.storing.flush_interval_s, clock)
        super().__init__(store, flusher, clock, settings or ServiceSettings())
        self.closing = False
        self.restoring = False
        self.warnings: list[str] = []
        self.insight = Insight()
        # Of all jobs, for pages that list them; a second's changes of many jobs must fit.
        self.jobs_stream = self._new_stream(max_bytes=_JOBS_STREAM_BYTES)
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

    async def find(self, name: str) -> LiveJob | None:
        """Return a job, from the store if it ended; None if there is none."""
        live = self.jobs.get(name)
        if live is None:
            return await self.shelf.find(name)
        self.thoughts.at_once(live)
        return live

    async def summaries(self) -> AsyncIterator[View]:
        """Yield the summaries of all jobs, active and ended, with turns for others in between.

        Each comes once, though jobs may end or go on meanwhile.
        """
        now_s, turns, told = self.now_s(), Turns(), set[str]()
        async for view in self.insight.summaries(list(self.jobs.values()), now_s):
            told.add(view["job"])
            yield view
        for view in self.shelf.views(now_s):
            if view["job"] not in told:
                told.add(view["job"])
                yield view
            await turns.give()
        woken = [live for name, live in self.jobs.items() if name not in told]
        async for view in self.insight.summaries(woken, now_s):
            yield view

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
