"""When jobs are written: measurements every few seconds, decisions at once.

Each job has at most one write under way, and what changed meanwhile goes into the next. A write
that fails is made up for by the next one, which holds the whole state.
"""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from libra.balancer.failpoints import failpoint
from libra.balancer.live_job import LiveJob
from libra.balancer.policy import Policy
from libra.balancer.storage import PutJob, StoreError, StoreLike

logger = logging.getLogger(__name__)

# A write begins within this share of the interval, so that it is durable when the interval ends.
_EARLIEST, _LATEST = 0.5, 0.9
_RETRY_S = 1.0


class Flusher:
    """Write changed jobs to a store.

    Attributes:
        interval_s: a crash loses no older measurement.
    """

    def __init__(self, store: StoreLike, interval_s: float, clock: Callable[[], float]) -> None:
        self.interval_s = interval_s
        self._store = store
        self._clock = clock
        self._ready: deque[LiveJob] = deque()
        self._task: asyncio.Task[None] | None = None

    def changed(self, live: LiveJob, *, at_once: bool = False) -> None:
        """A job has changed: write it soon, or at once."""
        if at_once:
            self._write(live)
        elif not live.flush_planned and not live.gone:
            # By its name, so that jobs that began together are not written together.
            share = zlib.crc32(live.job.name.encode()) / 2**32
            self._plan(live, self.interval_s * (_EARLIEST + share * (_LATEST - _EARLIEST)))

    async def durable(self, live: LiveJob) -> None:
        """Return once all of a job that has changed so far is on disk.

        Raises:
            StoreError: the write failed; it will be tried again.
        """
        if not live.dirty:
            return
        done = asyncio.get_running_loop().create_future()
        live.waiters.append((live.changes, done))
        self._write(live)
        await done

    def abandon(self, live: LiveJob) -> None:
        """Write nothing of a job any more; who waits for it is told."""
        live.gone = True
        for future in self._waiting(live, live.changes):
            future.set_exception(StoreError(f"job {live.job.name} is not kept here any more"))

    async def all_durable(self, jobs: Iterable[LiveJob]) -> None:
        """Write all of every job that has changed; what fails is logged."""
        dirty = [live for live in jobs if live.dirty and not live.gone]
        told = await asyncio.gather(*map(self._all_durable, dirty), return_exceptions=True)
        for live, error in zip(dirty, told, strict=True):
            if error is not None:
                logger.error("Job %s could not be written: %s.", live.job.name, error)

    async def _all_durable(self, live: LiveJob) -> None:
        # One write takes a part of the steps that wait.
        while live.dirty:
            await self.durable(live)

    def _plan(self, live: LiveJob, delay_s: float) -> None:
        live.flush_planned = True
        asyncio.get_running_loop().call_later(delay_s, self._due, live)

    def _due(self, live: LiveJob) -> None:
        live.flush_planned = False
        self._ready.append(live)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="libra-flush")

    async def _run(self) -> None:
        # One job a turn of the loop, however many are due.
        while self._ready:
            self._write(self._ready.popleft())
            await asyncio.sleep(0)

    def _write(self, live: LiveJob) -> None:
        if live.gone:
            self.abandon(live)
        if live.writing:
            live.overdue = True  # the write under way is followed by another at once
        if live.writing or live.gone or not live.dirty:
            return
        now_s = self._clock()
        changes, policy = live.changes, live.job.policy
        core = PutJob(
            job=live.job.name,
            at_s=now_s,
            core=live.job.core(),
            summary=live.summary,
            finished=live.finished,
        )
        steps = live.rows.take(now_s)
        live.writing, live.overdue = True, False
        try:
            stored = asyncio.wrap_future(self._store.submit([core, *steps]))
        except StoreError as error:
            self._failed(live, changes, error)
            return
        stored.add_done_callback(partial(self._done, live, changes, policy))

    def _done(
        self, live: LiveJob, changes: int, policy: Policy, stored: "asyncio.Future[None]"
    ) -> None:
        try:
            stored.result()
            failpoint("before_show")
        except StoreError as error:
            self._failed(live, changes, error)
            return
        live.writing = False
        live.written(policy, changes, self._clock())
        failpoint("after_show")
        for future in self._waiting(live, changes):
            future.set_result(None)
        if live.dirty:
            self.changed(live, at_once=live.holding or live.overdue)

    def _failed(self, live: LiveJob, changes: int, error: StoreError) -> None:
        live.writing = False
        live.rows.put_back()
        for future in self._waiting(live, changes):
            future.set_exception(error)
        if not live.flush_planned and not live.gone:
            self._plan(live, min(_RETRY_S, self.interval_s))

    @staticmethod
    def _waiting(live: LiveJob, changes: int) -> "list[asyncio.Future[None]]":
        """Take those who wait for these changes and are there still."""
        ready = [future for until, future in live.waiters if until <= changes]
        live.waiters = [waiter for waiter in live.waiters if waiter[0] > changes]
        return [future for future in ready if not future.done()]
