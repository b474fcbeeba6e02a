"""What a scrape costs: the page of many large jobs, and the longest that it holds up the rest.

.venv/bin/python benchmarks/metrics_scrape.py
.venv/bin/python benchmarks/metrics_scrape.py --quick
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import machine
from benchmarks.tables import Row, table
from libra.balancer.app import create_app
from libra.balancer.job import Job
from libra.balancer.metrics_settings import MetricsSettings
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings, ServiceSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store
from libra.balancer.wire import Coordinates
from tests.simulated_job import SimulatedJob

_STEPS = 10
_POOL_RANKS = 64
_NOW_S = 1_700_000_000.0
# A page is kept for a second.
_KEPT_S = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few jobs of few ranks")
    add("--jobs", type=int, default=100)
    add("--ranks", type=int, default=4096)
    add("--levels", nargs="*", default=["job", "pool"])
    args = parser.parse_args()
    jobs, ranks = (10, 64) if args.quick else (args.jobs, args.ranks)
    print(machine("uvloop", "fastapi"))
    body = snapshot(ranks)
    rows = [row for level in args.levels for row in uvloop.run(measure(body, jobs, level))]
    print(table(rows))


def snapshot(ranks: int) -> bytes:
    """Return the snapshot of a job of so many ranks."""
    job = Job("job", mode="observe")
    for report in SimulatedJob(world_size=ranks).reports(range(_STEPS)):
        report.coordinates = Coordinates(dp=report.rank, pool=report.rank // _POOL_RANKS)
        job.apply(report, _NOW_S)
    return job.dump()


async def measure(body: bytes, jobs: int, level: str) -> list[Row]:
    """Return a row for the first page, and for later ones with and without a new step."""
    async with _served(body, jobs, level) as (service, client):
        rows = []
        for name, steps in (("first", False), ("later", False), ("after a step of all", True)):
            if steps:
                _forget(service)
            rows.append({"level": level, "page": name} | await _scrape(client))
            await asyncio.sleep(_KEPT_S)
        _forget(service)
        rows.append({"level": "", "page": "list of jobs"} | await _scrape(client, "/api/v1/jobs"))
        return rows


async def _scrape(client: httpx.AsyncClient, path: str = "/metrics") -> Row:
    # Building the jobs has left a collection due that no scrape brings about.
    gc.collect()
    async with _watched() as loop:
        start = time.perf_counter()
        page = await client.get(path, headers={"Accept-Encoding": "gzip"})
        took_s = time.perf_counter() - start
    series = sum(not line.startswith("#") for line in page.text.splitlines())
    return {
        "series": series,
        "ms": round(1e3 * took_s, 1),
        "loop late by, ms": round(1e3 * loop.late_s, 1),
        "longest turn, CPU ms": round(1e3 * loop.turn_cpu_s, 1),
        "gzipped KB": int(page.headers["content-length"]) // 1000,
    }


@dataclass
class _Loop:
    """By how much the loop was late at worst, and its thread's CPU time in one turn at most."""

    late_s: float = 0.0
    turn_cpu_s: float = 0.0


@asynccontextmanager
async def _watched() -> AsyncIterator[_Loop]:
    """Look at the loop once a millisecond; CPU time is no busy machine's fault."""
    seen, every_s = _Loop(), 0.001

    async def tick() -> None:
        while True:
            due_s, used_s = time.perf_counter() + every_s, time.thread_time()
            await asyncio.sleep(every_s)
            seen.late_s = max(seen.late_s, time.perf_counter() - due_s)
            seen.turn_cpu_s = max(seen.turn_cpu_s, time.thread_time() - used_s)

    task = asyncio.create_task(tick())
    await asyncio.sleep(0.05)
    seen.late_s = seen.turn_cpu_s = 0.0
    try:
        yield seen
        await asyncio.sleep(2 * every_s)
    finally:
        task.cancel()


@asynccontextmanager
async def _served(
    body: bytes, jobs: int, level: str
) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    settings = ServeSettings(metrics=MetricsSettings(metrics_level=level))
    with _store() as store:
        service = Service(store, ServiceSettings(), clock=lambda: _NOW_S)
        for number in range(jobs):
            job = Job.load(body)
            job.state.name = f"job-{number}"
            service.jobs[job.name] = service._bring(job)
        transport = httpx.ASGITransport(app=create_app(service, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://libra") as client:
            yield service, client


@contextmanager
def _store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(SqliteBackend(Path(folder) / "store.sqlite"))
        try:
            yield store
        finally:
            store.close()


def _forget(service: Service) -> None:
    """Let every job have a step that nothing was found out about yet."""
    for live in service.jobs.values():
        live.job.diagnosed._of = live.job.advised._of = None


if __name__ == "__main__":
    main()
