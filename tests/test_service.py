"""A restart, however sudden, changes nothing that anyone was told of a job."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from libra.balancer import service as module
from libra.balancer.job import Job
from libra.balancer.policy import Policy, decode_policy
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings
from libra.balancer.store import Store, StoreError, Write
from libra.balancer.wire import Report, encode_report
from tests.running import make_report, running_balancer
from tests.simulated_job import SimulatedJob

# A hundred reports, each kept before the next is sent: on a busy disk that takes minutes.
pytestmark = pytest.mark.timeout(300)

NOW_S = 1_000_000.0


def open_service(path: Path, **settings: Any) -> Service:
    """Return the restored service of a store; nothing is written when it ends."""
    made = Service(
        Store(path, commit_interval_s=0),
        ServiceSettings(store=path, **settings),
        clock=lambda: NOW_S,
    )
    made.restore()
    return made


def send_all(service: Service, reports: Sequence[Report]) -> list[bool]:
    async def go() -> list[bool]:
        return [await service.report(report, encode_report(report)) for report in reports]

    return asyncio.run(go())


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


@pytest.mark.parametrize("floor_bytes", [1 << 20, 20_000, 0])
def test_a_restart_changes_no_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floor_bytes: int
) -> None:
    """Model, steps, ranks, mode and policies: from reports, snapshots, or both in turn."""
    monkeypatch.setattr(module, "_SNAPSHOT_FLOOR_BYTES", floor_bytes)
    path = tmp_path / "s.sqlite"
    before = open_service(path, mode="adapt")
    send_all(before, SimulatedJob().reports(range(30)))
    shown = views(before)
    before.store.close()
    after = open_service(path, mode="observe")
    restored = views(after)
    after.store.close()

    assert shown["job"][-1].version >= 1
    assert same(restored, shown)


def test_a_restart_forgets_no_report(tmp_path: Path) -> None:
    """What was folded in is a duplicate afterwards, and late mode changes are kept."""
    path = tmp_path / "s.sqlite"
    reports = SimulatedJob().reports(range(5))
    before = open_service(path)
    send_all(before, reports)
    asyncio.run(before.set_mode(before.jobs["job"], "frozen"))
    before.store.close()
    after = open_service(path)
    fresh = send_all(after, reports)
    mode = after.jobs["job"].job.mode
    after.store.close()

    assert not any(fresh)
    assert mode == "frozen"


def test_the_store_does_not_grow_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports are replaced by a snapshot once they outweigh it, and seldom before."""
    monkeypatch.setattr(module, "_SNAPSHOT_FLOOR_BYTES", 10_000)
    reports = SimulatedJob(world_size=2).reports(range(60))
    before = open_service(tmp_path / "s.sqlite")
    snapshots: list[int] = []
    submit = before.store.submit

    def count(write: Write) -> Any:
        snapshots.append(write.snapshot is not None)
        return submit(write)

    monkeypatch.setattr(before.store, "submit", count)
    send_all(before, reports)
    live = before.jobs["job"]
    before.store.close()
    store = Store(tmp_path / "s.sqlite")
    (stored,) = store.load()
    store.close()

    assert 1 < sum(snapshots) < len(reports) / 4
    assert sum(len(body) for _, body in stored.reports) <= max(10_000, live.snapshot_bytes)


def test_a_decision_is_stored_as_state(tmp_path: Path) -> None:
    """A newer Libra that replays reports must not decide anew what agents follow already."""
    path = tmp_path / "s.sqlite"
    service = open_service(path, mode="adapt")
    reports = iter(SimulatedJob().reports(range(30)))
    send_all(service, [next(reports)])
    while service.jobs["job"].policy.version == 0:
        send_all(service, [next(reports)])
    policy = service.jobs["job"].policy
    service.store.close()
    store = Store(path)
    (stored,) = store.load()
    store.close()

    assert stored.snapshot is not None
    assert Job.load(stored.snapshot).policy == policy


@pytest.mark.fault
def test_a_decision_that_the_disk_lost_is_made_up_for(tmp_path: Path) -> None:
    """It is shown to nobody until a later write brings it to the disk with all else."""
    path = tmp_path / "s.sqlite"
    service = open_service(path)
    reports = SimulatedJob().reports(range(2))
    send_all(service, reports[:4])
    live, database = service.jobs["job"], service.store._connection
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    bulky = Policy(version=1, pooling=True, reason="x" * 100_000)
    with pytest.raises(StoreError, match="full"):
        asyncio.run(service.publish(live, bulky))
    early = live.policy.version
    database.execute("PRAGMA max_page_count = 100000").fetchone()
    send_all(service, reports[4:5])
    late = live.policy
    service.store.close()
    after = open_service(path)
    restored = after.jobs["job"].policy
    after.store.close()

    assert (early, late.version) == (0, 1)
    assert restored == late


@pytest.mark.fault
def test_one_unreadable_job_spoils_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins anew at its next report, and the log names it."""
    path = tmp_path / "s.sqlite"
    before = open_service(path)
    send_all(before, [make_report("good"), make_report("bad")])
    before.store.submit(Write(job="bad", at_s=NOW_S, snapshot=b"\x00")).result(60)
    before.store.close()
    after = open_service(path)
    names = set(after.jobs)
    fresh = send_all(after, [make_report("good"), make_report("bad")])
    after.store.close()

    assert names == {"good"}
    assert "job bad cannot be read" in caplog.text
    assert fresh == [False, True]


@pytest.mark.fault
def test_an_acknowledged_policy_survives_sigkill(tmp_path: Path) -> None:
    """The agents' policy is the same to the byte after a kill -9 and a restart in another mode."""
    path = tmp_path / "s.sqlite"
    with running_balancer(path, "--mode", "adapt") as running:
        for report in SimulatedJob().reports(range(12)):
            assert running.send(report).status_code == 202
        policy = running.client.get("/api/v1/jobs/job/policy")
        policies = running.view("job/policies")
        model = running.view("job/model")
        running.process.kill()
        running.process.wait(60)
    with running_balancer(path, "--mode", "observe") as running:
        restarted = running.client.get("/api/v1/jobs/job/policy")

        assert decode_policy(policy.content).version >= 1
        assert (restarted.content, restarted.headers["etag"]) == (
            policy.content,
            policy.headers["etag"],
        )
        assert running.view("job/policies") == policies
        assert same(running.view("job/model"), model)
        assert running.view("job")["mode"] == "adapt"
