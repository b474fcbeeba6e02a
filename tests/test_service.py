"""A restart, however sudden, changes nothing that anyone was told of a job."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libra.balancer.batch import BatchOutcome, batch_of
from libra.balancer.policy import Policy
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings
from libra.balancer.shelf import TooManyJobsError
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.storage import PutJob, StoreError
from libra.balancer.store import Store
from libra.balancer.store_settings import StoreSettings
from libra.balancer.wire import Report, ReportError
from tests.disk import Disk, failing_disk
from tests.running import make_report
from tests.simulated_job import SimulatedJob

NOW_S = 1_000_000.0
BULK = Policy(version=1, pooling=True, reason="by hand")


class Clock:
    """Unix time as the test tells it."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def opened(
    path: Path, clock: Clock | None = None, *, crash: bool = False, **settings: Any
) -> AsyncIterator[Service]:
    """The restored service of a store; with ``crash`` it ends without writing anything."""
    storing = StoreSettings(store=str(path), flush_interval_s=0.02, keep_days=1, keep_jobs=3)
    made = Service(
        Store(SqliteBackend(path)), ServiceSettings(**settings), clock or Clock(), storing=storing
    )
    made.restore()
    try:
        yield made
    finally:
        if crash:
            made.forget_memory()
        await made.close()


async def send_all(service: Service, reports: Sequence[Report]) -> list[BatchOutcome]:
    """Report, and let what follows be thought about."""
    outcomes = [await service.report(report) for report in reports]
    await service.queue.drain()
    return outcomes


async def flushed(service: Service) -> None:
    """Return once nothing waits to be written by itself."""
    async with asyncio.timeout(60):
        while any(live.dirty or live.writing for live in service.jobs.values()):
            await asyncio.sleep(0.01)


def views(service: Service) -> dict[str, Any]:
    """Return everything that the service shows of its jobs."""
    return {
        name: [
            live.job.summary(NOW_S),
            live.job.skew(2000),
            live.job.ranks(2000),
            live.job.model(),
            live.job.exchange(2000),
            live.job.policies(),
            live.policy,
        ]
        for name, live in service.jobs.items()
    }


def same(one: Any, other: Any) -> bool:
    """Compare views, floats to four digits.

    Matrix products round by how memory is aligned, and a fit to whole documents magnifies that:
    their query and key tokens are the same.
    """
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return math.isclose(one, other, rel_tol=1e-4) if isinstance(one, float) else one == other


async def restarted(path: Path, crash: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    async with opened(path, crash=crash, mode="adapt") as service:
        for start in range(0, 40, 8):
            await send_all(service, SimulatedJob().reports(range(start, start + 8)))
            await flushed(service)
        shown = views(service)
    async with opened(path, mode="observe") as service:
        await service._upkeep.backfill()
        return shown, views(service)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_a_restart_changes_no_view(tmp_path: Path, crash: bool) -> None:
    """Model, steps, ranks, mode and policies, from the core and the steps that were written."""
    shown, restored = asyncio.run(restarted(tmp_path / "s.sqlite", crash))

    assert shown["job"][-1].version >= 1
    assert len(shown["job"][1]["steps"]) == 40
    assert same(restored, shown)


def test_a_restart_forgets_no_report(tmp_path: Path) -> None:
    """What was folded in is a duplicate afterwards, and late mode changes are kept."""

    async def go() -> None:
        reports = SimulatedJob().reports(range(5))
        async with opened(tmp_path / "s.sqlite") as service:
            await send_all(service, reports)
            await service.set_mode(service.jobs["job"], "frozen")
        async with opened(tmp_path / "s.sqlite") as service:
            outcomes = await send_all(service, reports)
            assert all(outcome.duplicates for outcome in outcomes)
            assert service.jobs["job"].job.mode == "frozen"

    asyncio.run(go())


def test_reports_are_written_together(tmp_path: Path) -> None:
    """Hundreds of reports cost a few transactions, and none of them waits for one."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            service.flusher.interval_s = 30.0
            await send_all(service, SimulatedJob().reports(range(30)))
            assert service.store.commits.count == 0
            await service.flusher.durable(service.jobs["job"])
            assert service.store.commits.count == 1

    asyncio.run(go())


def test_a_policy_is_on_disk_before_it_is_shown(tmp_path: Path, disk: Disk) -> None:
    """Neither the one that a person publishes nor the balancer's own: a crash undoes none."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite", crash=True, mode="adapt") as service:
            service.flusher.interval_s = 1e6
            await send_all(service, SimulatedJob().reports(range(1)))
            disk.keep_busy()
            await send_all(service, SimulatedJob().reports(range(1, 30)))
            live = service.jobs["job"]
            assert live.job.policy.version >= 1
            assert live.policy.version == 0
            disk.free.set()
            await service.flusher.durable(live)
            shown = live.policy
        async with opened(tmp_path / "s.sqlite") as service:
            assert shown.version >= 1
            assert service.jobs["job"].policy == shown

    asyncio.run(go())


@pytest.mark.fault
def test_a_policy_that_the_disk_refused_is_shown_once_it_is_safe(tmp_path: Path) -> None:
    """The answer says that it waits; meanwhile no other is taken, and nobody sees it."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            await send_all(service, SimulatedJob().reports(range(2)))
            live = service.jobs["job"]
            await flushed(service)
            with failing_disk() as disk:
                with pytest.raises(StoreError, match="not in force, and will be once"):
                    await service.publish(live, BULK)
                with pytest.raises(StoreError, match="nothing was changed"):
                    await service.publish(live, BULK)
                with pytest.raises(StoreError, match="nothing was changed"):
                    await service.set_mode(live, "frozen")
                why = service.not_ready()
                disk.reached.clear()
                assert await asyncio.to_thread(disk.reached.wait, 60)  # it is tried again
                early = (live.policy.version, live.job.policy.version, live.job.mode)
            await flushed(service)

            assert (early, why) == ((0, 1, "observe"), "the last write to the store failed")
            assert (live.policy.version, service.not_ready()) == (1, None)

    asyncio.run(go())


@pytest.mark.fault
def test_steps_of_a_failed_write_come_with_the_next(tmp_path: Path) -> None:
    """A disk that was full for a while leaves no hole in the charts."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite", crash=True) as service:
            await send_all(service, SimulatedJob().reports(range(3)))
            with failing_disk():
                for start in range(3, 30, 3):
                    await send_all(service, SimulatedJob().reports(range(start, start + 3)))
                    await service.flusher.all_durable(service.jobs.values())
            await flushed(service)
        async with opened(tmp_path / "s.sqlite") as service:
            assert service.jobs["job"].job.skew(99)["steps"] == list(range(30))

    asyncio.run(go())


@pytest.mark.fault
def test_a_store_that_failed_is_tried_without_work(tmp_path: Path) -> None:
    """With no job to write it would be called broken for ever."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            with failing_disk(), pytest.raises(StoreError):
                await asyncio.wrap_future(service.store.submit([]))
            assert service.not_ready() is not None
            await service._upkeep.tick()
            assert service.not_ready() is None

    asyncio.run(go())


@pytest.mark.fault
def test_one_unreadable_job_spoils_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins anew at its next report, the log names it, and its state is kept for people."""

    async def go() -> None:
        path = tmp_path / "s.sqlite"
        async with opened(path) as service:
            await send_all(service, [make_report("good"), make_report("bad")])
        backend = SqliteBackend(path)
        backend.transact([PutJob(job="bad", at_s=NOW_S, core=b"\x00", summary=b"{}")])
        backend.close()
        async with opened(path) as service:
            names = set(service.jobs)
            outcomes = await send_all(service, [make_report("good"), make_report("bad")])
            assert (names, service.set_aside) == ({"good"}, 1)
            assert [outcome.duplicates for outcome in outcomes] == [1, 0]
        backend = SqliteBackend(path)
        stored = [s.job.partition("#")[0] for s in backend.summaries()]
        backend.close()
        assert stored == ["bad", "bad", "good"]

    asyncio.run(go())
    assert "job bad cannot be read" in caplog.text


def test_a_job_that_ended_leaves_memory_and_is_found(tmp_path: Path) -> None:
    """It is listed, shown when asked for, and goes on with its next report."""

    async def go() -> None:
        clock = Clock()
        async with opened(tmp_path / "s.sqlite", clock) as service:
            await send_all(service, SimulatedJob().reports(range(12)))
            shown = views(service)
            clock.now_s += 1000
            await service._upkeep.tick()
            (listed,) = [view async for view in service.summaries()]

            assert service.jobs == {}
            assert (listed["state"], listed["last_report_age_seconds"]) == ("finished", 1000.0)
            first, again = await asyncio.gather(service.find("job"), service.find("job"))
            assert first is not None
            assert first is again
            assert same(first.job.skew(99), shown["job"][1])
            assert same(first.job.model(), shown["job"][3])
            assert service.jobs == {}
            (outcome,) = await send_all(service, SimulatedJob().reports(range(12, 13))[:1])
            assert outcome.accepted == 1
            assert service.jobs["job"] is first
            await service._upkeep.tick()
            assert list(service.jobs) == ["job"]
        async with opened(tmp_path / "s.sqlite", clock) as service:
            assert list(service.jobs) == ["job"]

    asyncio.run(go())


def test_many_ended_jobs_take_a_bounded_place(tmp_path: Path) -> None:
    """A few stay loaded however many are asked for, and the store forgets the oldest."""

    async def go() -> None:
        clock = Clock()
        async with opened(tmp_path / "s.sqlite", clock) as service:
            for i in range(30):
                clock.now_s += 1
                await send_all(service, [make_report(f"job-{i:02}")])
            clock.now_s += 1000
            service._upkeep._pruned_s = clock.now_s  # not yet
            await service._upkeep.tick()
            for i in range(30):
                live = await service.find(f"job-{i:02}")
                assert live is not None
                assert live.job.name == f"job-{i:02}"
            loaded = len(service.shelf.loaded)
            clock.now_s += 100
            await service._upkeep.tick()
            kept = [view["job"] async for view in service.summaries()]
            clock.now_s += 2 * 86400
            await service._upkeep.tick()
            stored = await asyncio.wrap_future(service.store.ask(lambda b: b.summaries()))

            assert loaded <= 8
            assert kept == ["job-27", "job-28", "job-29"]
            left = [view async for view in service.summaries()]
            assert (left, service.shelf.loaded, stored) == ([], {}, [])

    asyncio.run(go())


def test_no_more_jobs_than_allowed_are_active(tmp_path: Path) -> None:
    """One more is asked to wait and counted; those that are there go on."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite", max_jobs=2) as service:
            await send_all(service, [make_report("a"), make_report("b")])
            with pytest.raises(TooManyJobsError, match="max_jobs=2"):
                await service.report(make_report("c"))
            await service.report(make_report("a", sequence=1))

            assert +service.results == {"accepted": 3, "jobs": 1}
            assert set(service.jobs) == {"a", "b"}

    asyncio.run(go())


def test_a_refused_report_makes_no_job(tmp_path: Path) -> None:
    """Nothing of it was true, its job's name included."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            with pytest.raises(ReportError):
                await service.report(make_report("a", rank=7))
            bad = [make_report("a", rank=rank) for rank in (7, 8)]
            with pytest.raises(ReportError):
                await service.take(batch_of(bad))
            assert service.jobs == {}
            assert +service.results == {"invalid": 3}

    asyncio.run(go())


@pytest.mark.parametrize("ended", [False, True])
def test_a_deleted_job_stays_deleted(tmp_path: Path, ended: bool) -> None:
    """Active or not: nothing that was under way brings it back, and its name may begin anew."""

    async def go() -> None:
        clock = Clock()
        async with opened(tmp_path / "s.sqlite", clock) as service:
            await send_all(service, [make_report("a"), make_report("b")])
            if ended:
                clock.now_s += 1000
                await service._upkeep.tick()
            assert await service.forget("a")
            assert not await service.forget("a")
            await flushed(service)
            assert await service.find("a") is None
            assert [view["job"] async for view in service.summaries()] == ["b"]
            stored = await asyncio.wrap_future(service.store.ask(lambda b: b.summaries()))
            assert [s.job for s in stored] == ["b"]
            (outcome,) = await send_all(service, [make_report("a")])
            assert outcome.accepted == 1

    asyncio.run(go())


def test_a_list_has_each_job_once_though_they_come_and_go(tmp_path: Path) -> None:
    """Jobs that end, or go on, while the list is made are neither missed nor told of twice."""

    async def go() -> None:
        clock = Clock()
        async with opened(tmp_path / "s.sqlite", clock) as service:
            await send_all(service, [make_report(name) for name in "abc"])
            listing = service.summaries()
            first = await anext(listing)
            clock.now_s += 1000
            await service._upkeep.tick()
            assert service.jobs == {}
            names = [first["job"], *[view["job"] async for view in listing]]
            assert sorted(names) == ["a", "b", "c"]

            await send_all(service, [make_report("a", sequence=1)])
            listing = service.summaries()
            first = await anext(listing)
            await send_all(service, [make_report("b", sequence=1)])
            names = [first["job"], *[view["job"] async for view in listing]]
            assert sorted(names) == ["a", "b", "c"]

    asyncio.run(go())


def test_versions_go_on_above_those_of_a_lost_store(tmp_path: Path) -> None:
    """Agents follow versions upwards only: the next policy is above what they run."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            for rank in range(2):
                report = make_report("a", rank=rank)
                report.steps[0].policy_version = 7
                await send_all(service, [report])
            row = await service.publish(service.jobs["a"], BULK)
            assert (row["version"], row["parent"]) == (8, 0)

    asyncio.run(go())


def test_one_rank_alone_lifts_no_version(tmp_path: Path) -> None:
    """A liar that tells of version 2**53 would use all numbers up."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            for rank in range(4):
                report = make_report("a", rank=rank, world_size=4)
                report.steps[0].policy_version = 2**53 if rank == 3 else 0
                await service.report(report)
            row = await service.publish(service.jobs["a"], BULK)
            assert row["version"] == 1

    asyncio.run(go())
