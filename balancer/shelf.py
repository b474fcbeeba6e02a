"""Jobs that ended: their summaries in memory, all else in the store until somebody asks.

A few that were asked for stay loaded. Who follows one that has to go comes back and finds it.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from libra.balancer.events import View
from libra.balancer.job import Job
from libra.balancer.live_job import LiveJob
from libra.balancer.state import JobSettings
from libra.balancer.steps import RING_STEPS
from libra.balancer.storage import (
    Backend,
    DropJob,
    PutJob,
    PutStep,
    StoredJob,
    StoredSummary,
    StoreFullError,
    StoreLike,
)

logger = logging.getLogger(__name__)

_MAX_LOADED = 8
# No job's name has it, so what is kept under such a name is found by people only.
_ASIDE = "#"


class TooManyJobsError(StoreFullError):
    """No further job may become active; try again later."""


class Shelf:
    """Find jobs that are not active.

    Attributes:
        stored: what the store holds of each, by name.
        loaded: those in memory, the least recently asked for first.
        set_aside: jobs whose state could not be read.
    """

    def __init__(
        self, store: StoreLike, settings: JobSettings, bring: Callable[[Job], LiveJob]
    ) -> None:
        self.stored: dict[str, StoredSummary] = {}
        self.loaded: OrderedDict[str, LiveJob] = OrderedDict()
        self.set_aside = 0
        self._store = store
        self._settings = settings
        self._bring = bring
        self._loading: dict[str, asyncio.Task[LiveJob | None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def fill(self, summaries: Iterable[StoredSummary]) -> None:
        self.stored = {s.job: s for s in summaries if _ASIDE not in s.job}

    def put(self, live: LiveJob, now_s: float) -> None:
        """Keep a job that ended and whose last state is in the store."""
        self.stored[live.job.name] = StoredSummary(
            job=live.job.name, at_s=now_s, finished=True, num_bytes=0, summary=live.summary
        )
        live.retire()

    def remove(self, name: str) -> LiveJob | None:
        """Forget a job, and return it if it is in memory."""
        self.stored.pop(name, None)
        return self.loaded.pop(name, None)

    def views(self, now_s: float) -> Iterator[View]:
        """Yield the summaries, with the age that they have now."""
        for stored in list(self.stored.values()):
            view = msgspec.json.decode(stored.summary, type=View)
            age_s = view.get("last_report_age_seconds")
            if age_s is not None:
                view["last_report_age_seconds"] = age_s + max(0.0, now_s - stored.at_s)
            yield {**view, "state": "finished"}

    async def find(self, name: str) -> LiveJob | None:
        """Return a job, loading it if need be; None if there is none.

        Raises ``StoreError``.
        """
        if name not in self.stored:
            return None
        live = self.loaded.get(name)
        if live is None:
            task = self._loading.get(name)
            if task is None:
                task = asyncio.create_task(self._load(name), name=f"libra-load-{name}")
                self._loading[name] = task
                task.add_done_callback(lambda _: self._loading.pop(name, None))
            # Several may wait for one reading, and any of them hang up.
            live = await asyncio.shield(task)
        if live is not None and name in self.loaded:
            self.loaded.move_to_end(name)
        return live

    def rebuild(self, stored: StoredJob) -> Job | None:
        """Return the job; None, with a line in the log, if it cannot be read."""
        try:
            return Job.load(stored.core, self._settings, stored.steps)
        except Exception:
            logger.exception("The stored state of job %s cannot be read.", stored.job)
            return None

    def keep_unreadable(self, stored: StoredJob) -> None:
        """Put a job's state where nothing takes its place, so that its name can begin anew."""
        self.set_aside += 1
        aside = f"{stored.job}{_ASIDE}{int(time.time())}"
        core = PutJob(job=aside, at_s=stored.at_s, core=stored.core, summary=b"{}", finished=True)
        steps = [
            PutStep(job=aside, attempt=0, step=i, at_s=stored.at_s, body=body)
            for i, body in enumerate(stored.steps)
        ]
        self._store.submit([core, *steps, DropJob(job=stored.job)])
        logger.error("The state of job %s is kept as %s: it begins anew.", stored.job, aside)

    async def _load(self, name: str) -> LiveJob | None:
        def question(backend: Backend) -> StoredJob | None:
            return backend.load(name, last_steps=RING_STEPS)

        stored = await asyncio.wrap_future(self._store.ask(question))
        job = None
        if stored is not None:
            job = await asyncio.to_thread(self.rebuild, stored)
            if job is None:
                self.keep_unreadable(stored)
        if job is None or name not in self.stored:
            self.stored.pop(name, None)
            return None
        live = self.loaded[name] = self._bring(job)
        live.finished = True
        self._make_room()
        return live

    def _make_room(self) -> None:
        # One that was changed stays until it is written.
        idle = [name for name, live in self.loaded.items() if not live.dirty and not live.writing]
        for name in idle[: max(0, len(self.loaded) - _MAX_LOADED)]:
            self.loaded.pop(name).retire()
