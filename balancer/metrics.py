"""The page that Prometheus reads: live state at scrape time, so nothing can go stale.

Figures are gathered on the event loop, job by job with turns for reports in between, and written
and packed in a thread; one page at a time, and the same to all who ask within a second. A job
that ended has no series.
"""

import asyncio
import gzip
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from libra.balancer.job_figures import JobFigures, job_figures
from libra.balancer.metric_lines import balancer_lines, job_lines, pool_lines, rank_lines
from libra.balancer.metric_text import Lines, write
from libra.balancer.metrics_settings import MetricsSettings
from libra.balancer.service import Service
from libra.balancer.turns import Turns

_KEPT_S = 1.0
# Diagnoses that a page may wait for; later ones are made between pages.
_DIAGNOSES_S = 0.02
_GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class _Page:
    body: bytes
    until_s: float


class MetricsPage:
    """Make the page whenever it is asked for, at most once a second; all on one event loop."""

    def __init__(self, service: Service, settings: MetricsSettings) -> None:
        self._service = service
        self._settings = settings
        self._pages: dict[tuple[bool, bool], _Page] = {}
        self._under_way: dict[tuple[bool, bool], asyncio.Task[bytes]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._limited = 0
        self._took_s = 0.0

    async def read(self, *, openmetrics: bool = False, zipped: bool = False) -> bytes:
        """Return the page; raise ``TimeoutError`` if it is not ready by the deadline."""
        key = openmetrics, zipped
        page = self._pages.get(key)
        if page is not None and time.monotonic() < page.until_s:
            return page.body
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._make(key))
        # Who gives up leaves the page to those who still wait.
        async with asyncio.timeout(self._settings.metrics_deadline_s):
            return await asyncio.shield(task)

    async def _make(self, key: tuple[bool, bool]) -> bytes:
        openmetrics, zipped = key
        try:
            async with self._one_at_a_time:
                start = time.perf_counter()
                blocks, jobs = await self._gather()
                now_s = self._service.now_s()
                lines = await asyncio.to_thread(self._write, blocks, jobs, now_s, openmetrics)
                body = await asyncio.to_thread(_pack, lines, zipped)
                self._took_s = time.perf_counter() - start
                self._pages[key] = _Page(body, time.monotonic() + _KEPT_S)
        finally:
            del self._under_way[key]
        return body

    async def _gather(self) -> tuple[Lines, list[JobFigures]]:
        service, level = self._service, self._settings.metrics_level
        figures: list[JobFigures] = []
        states = ["finished"] * len(service.shelf.stored)
        turns, spent_s = Turns(), 0.0
        for live in list(service.jobs.values()):
            seen = job_figures(live, service.now_s(), level)
            states.append(seen.view["state"])
            await turns.give()
            if seen.view["state"] == "finished":
                continue
            if not live.job.diagnosed.current and spent_s >= _DIAGNOSES_S:
                service.insight.later(live)
            elif not live.job.diagnosed.current:
                start = time.perf_counter()
                await service.insight.diagnose(live)
                seen = replace(seen, found=live.job.diagnosed.newest)
                spent_s += time.perf_counter() - start
            figures.append(seen)
        blocks = balancer_lines(service, states)
        blocks.add("libra_metrics_collect_duration_seconds", self._took_s)
        return blocks, figures

    def _write(
        self, balancer: Lines, jobs: Sequence[JobFigures], now_s: float, openmetrics: bool
    ) -> str:
        """Put the page together; coarse lines first, so that the cap cuts the finest."""
        level = self._settings.metrics_level
        blocks = [job_lines(job, now_s) for job in jobs]
        if level != "job":
            blocks += [pool_lines(job) for job in jobs]
        room = self._settings.metrics_max_series - balancer.series - 1
        kept, room = self._fitting(blocks, room)
        if level == "rank":
            for job in jobs:
                # Not even made where there is no room: it may be thousands of lines a job.
                ranks = 0 if job.newest is None else 3 * len(job.newest.kernel_seconds)
                if ranks > room:
                    self._limited += ranks
                    continue
                more, room = self._fitting([rank_lines(job)], room)
                kept += more
        balancer.add("libra_series_limited", self._limited)
        return write([balancer, *kept], level=level, openmetrics=openmetrics)

    def _fitting(self, blocks: Sequence[Lines], room: int) -> tuple[list[Lines], int]:
        """Return the blocks that fit, each whole, and the room that is left; count the others."""
        kept = []
        for block in blocks:
            if block.series <= room:
                kept.append(block)
                room -= block.series
            else:
                self._limited += block.series
        return kept, room


def _pack(text: str, zipped: bool) -> bytes:
    body = text.encode()
    return gzip.compress(body, _GZIP_LEVEL) if zipped else body
