"""What of jobs takes long to find out: diagnoses, and which pools to use.

With thousands of ranks each takes tens or hundreds of milliseconds. So a thread makes them, one at
a time, from the state of one moment; what was found is kept with the job until that goes on.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from libra.balancer.diagnosis import diagnose
from libra.balancer.events import View
from libra.balancer.live_job import LiveJob
from libra.balancer.pool_views import pool_advice
from libra.balancer.state import JobState
from libra.balancer.turns import Turns

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

# Who lists jobs waits this long for what is new of them; the rest is found out later.
_PATIENCE_S = 0.25
# Later means between other work, a tenth of the time.
_REST = 9.0


class Insight:
    """Find out about jobs, off the event loop."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._waiting: dict[str, LiveJob] = {}
        self._task: asyncio.Task[None] | None = None

    async def look(self, live: LiveJob, question: Callable[[JobState], Found]) -> Found:
        """Return what a pure question finds in a job's state of this moment."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(question, live.job.still())

    async def diagnose(self, live: LiveJob) -> None:
        """Bring a job's diagnosis up to date."""
        found = live.job.diagnosed
        async with self._one_at_a_time:
            if not found.current:
                moment, state = found.moment(), live.job.still()
                settings = live.job.settings
                found.keep(await asyncio.to_thread(diagnose, state, settings), moment)

    async def advise(self, live: LiveJob) -> None:
        """Bring the advice on a job's pools up to date, as far as that is tried anew."""
        advised = live.job.advised
        async with self._one_at_a_time:
            if not advised.current:
                moment, state = advised.moment(), live.job.still()
                advised.keep(await asyncio.to_thread(pool_advice, state), moment)

    async def renew(self, live: LiveJob) -> None:
        """Bring both up to date; what fails is logged, and stays as it was."""
        for find_out in (self.diagnose, self.advise):
            await self._quietly(find_out, live)

    def later(self, live: LiveJob) -> None:
        """Bring both up to date when there is time for it."""
        self._waiting.setdefault(live.job.name, live)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="libra-insight")

    async def summaries(self, lives: Iterable[LiveJob], now_s: float) -> AsyncIterator[View]:
        """Yield the summary of each job, with turns for others in between."""
        turns, until_s = Turns(), time.perf_counter() + _PATIENCE_S
        for live in lives:
            if not live.job.is_known:
                if time.perf_counter() < until_s:
                    await self.renew(live)
                else:
                    self.later(live)
            yield live.job.summary_as_known(now_s)
            await turns.give()

    async def _run(self) -> None:
        while self._waiting:
            live = self._waiting.pop(next(iter(self._waiting)))
            for find_out in (self.diagnose, self.advise):
                start = time.perf_counter()
                await self._quietly(find_out, live)
                await asyncio.sleep(_REST * (time.perf_counter() - start))

    async def _quietly(
        self, find_out: Callable[[LiveJob], Coroutine[Any, Any, None]], live: LiveJob
    ) -> None:
        try:
            await find_out(live)
        except Exception:
            logger.exception("Nothing could be found out about job %s.", live.job.name)
