"""What is done for jobs besides their reports: read at the start, unloaded at the end, dropped.

Slow questions run on the store's thread and big decodings on another: the event loop never waits.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from libra.balancer.failpoints import failpoint
from libra.balancer.job import Job
from libra.balancer.live_job import LiveJob
from libra.balancer.memory import give_back
from libra.balancer.snapshot import decode_steps
from libra.balancer.steps import RING_STEPS
from libra.balancer.storage import Backend, DropJob, StoredJob, StoreError

if TYPE_CHECKING:
    from libra.balancer.service import Service

logger = logging.getLogger(__name__)

# Enough to decide as before; older steps are for charts, and come when all jobs are served.
RESTORED_STEPS = 256
_LONGEST_TICK_S = 5.0
_PRUNE_EVERY_S = 60.0
_GIVE_BACK_EVERY_S = 60.0
_DAY_S = 86400.0


class Upkeep:
    """Look after a service's jobs and its store."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None
        self._pruned_s = -_PRUNE_EVERY_S
        self._given_back_s = -_GIVE_BACK_EVERY_S

    def read_jobs(self, timeout_s: float) -> Iterator[Job]:
        """Yield every stored job that had not ended, and fill the shelf with the others.

        One that cannot be read is set aside. Raises ``StoreError``.
        """
        store, shelf = self._service.store, self._service.shelf
        summaries = store.ask(lambda backend: backend.summaries()).result(timeout_s)
        shelf.fill(summary for summary in summaries if summary.finished)
        for summary in summaries:
            if summary.finished:
                continue
            failpoint("during_restore")
            stored = store.ask(_loading(summary.job, RESTORED_STEPS)).result(timeout_s)
            job = None if stored is None else shelf.rebuild(stored)
            if job is not None:
                yield job
            elif stored is not None:
                shelf.keep_unreadable(stored)

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="libra-upkeep")

    def stop(self) -> None:
        """Stop at once; ``start`` begins anew, charts included."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self, timeout_s: float) -> None:
        """Stop, take in the reports that wait, and write all jobs."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        service = self._service
        try:
            async with asyncio.timeout(timeout_s):
                await service.queue.drain()
                await service.flusher.all_durable(
                    [*service.jobs.values(), *service.shelf.loaded.values()]
                )
        except TimeoutError:
            logger.error("Not all jobs could be written within %g s.", timeout_s)

    async def backfill(self) -> None:
        """Bring the older steps of restored jobs back, for their charts."""
        for live in list(self._service.jobs.values()):
            question = _loading(live.job.name, RING_STEPS)
            stored = await asyncio.wrap_future(self._service.store.ask(question))
            if stored is not None:
                attempt = live.job.attempt
                live.job.backfill(await asyncio.to_thread(decode_steps, stored.steps, attempt))

    async def tick(self) -> None:
        """Unload what ended, try a store that failed, drop what is too old or too much, and give
        memory back.
        """
        service = self._service
        for live in list(service.jobs.values()):
            if self._has_ended(live):
                await self._unload(live)
        if not service.store.healthy:
            await asyncio.wrap_future(service.store.submit([]))
        now_s = service.now_s()
        if abs(now_s - self._pruned_s) >= _PRUNE_EVERY_S:
            # A store drops a bounded number at a time: there may be more.
            self._pruned_s = -_PRUNE_EVERY_S if await self._prune(now_s) else now_s
        if abs(now_s - self._given_back_s) >= _GIVE_BACK_EVERY_S:
            self._given_back_s = now_s
            await asyncio.to_thread(give_back)

    async def _run(self) -> None:
        tick_s = min(_LONGEST_TICK_S, self._service.settings.job.finished_after_s / 4)
        await self._try(self.backfill())
        while True:
            await asyncio.sleep(tick_s)
            if self._service.role == "active":
                await self._try(self.tick())

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StoreError:
            pass  # the store has said so, and it is tried again
        except Exception:
            logger.exception("Looking after the jobs failed; it is tried again.")

    def _has_ended(self, live: LiveJob) -> bool:
        newest_s = max(live.job.last_report_s or 0.0, live.used_s)
        return self._service.now_s() - newest_s >= self._service.settings.job.finished_after_s

    async def _unload(self, live: LiveJob) -> None:
        service, name = self._service, live.job.name
        service.thoughts.at_once(live)
        await service.insight.renew(live)
        live.summary = msgspec.json.encode(live.job.summary_as_known(service.now_s()))
        live.finished = True
        live.changes += 1
        await service.flusher.durable(live)
        failpoint("during_unload")
        # A report that came meanwhile brings it back to life.
        if live.finished and not live.dirty and service.jobs.get(name) is live:
            del service.jobs[name]
            service.shelf.put(live, service.now_s())

    async def _prune(self, now_s: float) -> bool:
        """Drop what is too old or too much; return whether there was any."""
        service, storing = self._service, self._service.storing
        keep = frozenset(service.jobs)

        def question(backend: Backend) -> list[str]:
            before_s = now_s - storing.keep_days * _DAY_S
            return backend.prune(before_s=before_s, max_bytes=storing.keep_bytes, keep=keep)

        dropped = set(await asyncio.wrap_future(service.store.ask(question)))
        oldest = sorted(service.shelf.stored.values(), key=lambda s: s.at_s)
        surplus = [s.job for s in oldest if s.job not in dropped]
        surplus = surplus[: max(0, len(surplus) - storing.keep_jobs)]
        if surplus:
            await asyncio.wrap_future(service.store.submit([DropJob(job=n) for n in surplus]))
        for name in dropped.union(surplus) - service.jobs.keys():
            live = service.shelf.remove(name)
            if live is not None:
                service.flusher.abandon(live)
                live.retire()
        return bool(dropped or surplus)


def _loading(job: str, last_steps: int) -> Callable[[Backend], StoredJob | None]:
    def question(backend: Backend) -> StoredJob | None:
        return backend.load(job, last_steps=last_steps)

    return question
