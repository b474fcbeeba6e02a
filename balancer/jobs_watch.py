"""One stream of all jobs' head lines: a page that lists jobs needs no stream for each."""

import asyncio
from typing import Any

from libra.balancer.events import View
from libra.balancer.live_job import LiveJob
from libra.balancer.service import Service

_EVERY_S = 1.0
# Who asks now and then, instead of following, is expected back within these seconds.
_POLLER_S = 60.0
# Jobs in one event: what a page reads at once, and a small part of the ring.
_MAX_ROWS = 64


class JobsWatch:
    """Publish the summaries that changed, once a second while anybody follows."""

    def __init__(self, service: Service, every_s: float = _EVERY_S) -> None:
        self._service = service
        self._every_s = every_s
        self._marks: dict[str, object] = {}
        self._task: asyncio.Task[None] | None = None
        self._until_s = 0.0

    def begin(self) -> None:
        """Watch from now on, until nobody follows or asks any more."""
        self._until_s = asyncio.get_running_loop().time() + _POLLER_S
        if self._task is None or self._task.done():
            self._marks = {name: _mark(live, self._now_s()) for name, live in self._jobs()}
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        stream = self._service.jobs_stream
        while not stream.closed:
            await asyncio.sleep(self._every_s)
            if not stream.clients and asyncio.get_running_loop().time() >= self._until_s:
                return
            await self._look()

    async def _look(self) -> None:
        rows: list[View] = []
        changed = []
        for name, live in self._jobs():
            mark = _mark(live, self._now_s())
            if self._marks.get(name) != mark:
                self._marks[name] = mark
                changed.append(live)
        async for row in self._service.insight.summaries(changed, self._now_s()):
            rows.append(row)
            if len(rows) == _MAX_ROWS:
                self._publish(rows, [])
                rows = []
        ended = [name for name in self._marks if name not in self._service.jobs]
        for name in ended:
            del self._marks[name]
        if rows or ended:
            self._publish(rows, ended)

    def _publish(self, rows: list[View], ended: list[str]) -> None:
        data: dict[str, Any] = {"jobs": rows, "ended": ended}
        self._service.jobs_stream.publish("jobs", data)

    def _jobs(self) -> list[tuple[str, LiveJob]]:
        return list(self._service.jobs.items())

    def _now_s(self) -> float:
        return self._service.now_s()


def _mark(live: LiveJob, now_s: float) -> object:
    """Return what differs when a summary does, but for the age of the last report."""
    state = live.job.state
    counters = state.counters
    age_s = now_s - (state.last_report_s or now_s)
    settings = live.job.settings
    return (
        *(state.mode, state.policy.version, state.log.attempt, state.log.complete),
        *(state.log.incomplete, counters.rejected, counters.late, len(state.ranks)),
        *(age_s >= settings.stale_after_s, age_s >= settings.finished_after_s),
        *(live.job.diagnosed.newest, live.job.advised.size),
    )
