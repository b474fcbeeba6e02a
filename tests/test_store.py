"""What the store acknowledged is there after any end of the process; what it cannot, it says."""

import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from libra.balancer.store import Store, StoredJob, StoreError, StoreFullError, Write
from tests.disk import Disk
from tests.running import make_report, running_balancer, wait_for


def write(job: str, *, report: bytes | None = None, snapshot: bytes | None = None) -> Write:
    return Write(job=job, at_s=1.0, report=report, snapshot=snapshot)


def stored(path: Path) -> list[StoredJob]:
    store = Store(path)
    try:
        return store.load()
    finally:
        store.close()


def test_a_job_is_its_snapshot_and_the_reports_since(tmp_path: Path) -> None:
    """Reports are kept in order, and a new snapshot replaces those before it."""
    store = Store(tmp_path / "s.sqlite")
    store.submit(write("a", snapshot=b"a0"))
    store.submit(write("b", snapshot=b"b0"))
    store.submit(write("a", report=b"gone"))
    store.submit(write("a", snapshot=b"a1"))
    store.submit(write("a", report=b"first"))
    store.submit(write("a", report=b"second")).result(60)
    store.close()

    assert stored(tmp_path / "s.sqlite") == [
        StoredJob(name="b", snapshot=b"b0"),
        StoredJob(name="a", snapshot=b"a1", reports=[(1.0, b"first"), (1.0, b"second")]),
    ]


def test_many_writes_share_a_transaction(tmp_path: Path, disk: Disk) -> None:
    """A hundred writes that came while the disk was busy cost one fsync, not a hundred."""
    store = Store(tmp_path / "s.sqlite")
    disk.keep_busy()
    taken = [store.submit(write("a", snapshot=b"a0"))]
    assert disk.reached.wait(60)
    taken += [store.submit(write("a", report=b"%d" % i)) for i in range(100)]
    disk.free.set()
    for future in taken:
        future.result(60)
    commits = store.commits
    store.close()

    assert commits == 1 + 1


def test_every_commit_is_synced(tmp_path: Path) -> None:
    """A write-ahead log with full synchronisation: the one setting that survives a power cut."""
    store = Store(tmp_path / "s.sqlite")
    pragmas = [
        store._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    store.close()

    assert pragmas == ["wal", 2]


@pytest.mark.fault
def test_a_slow_disk_fills_the_queue(tmp_path: Path, disk: Disk) -> None:
    """When the disk does not keep up, writes are refused and memory stays bounded."""
    store = Store(tmp_path / "s.sqlite", queue_size=3, commit_interval_s=0)
    disk.keep_busy()
    taken = [store.submit(write("a", snapshot=b"0"))]
    assert disk.reached.wait(60)
    taken += [store.submit(write("a", report=b"%d" % i)) for i in range(3)]
    with pytest.raises(StoreFullError, match="3 writes wait"):
        store.submit(write("a", report=b"one too many"))
    disk.free.set()
    for future in taken:
        future.result(60)
    store.close()


@pytest.mark.fault
def test_a_failed_transaction_is_told_to_all_in_it(tmp_path: Path) -> None:
    """A full disk fails the writes, is counted, and the store works again afterwards."""
    store = Store(tmp_path / "s.sqlite")
    store.submit(write("a", snapshot=b"0")).result(60)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    with pytest.raises(StoreError, match="full"):
        store.submit(write("a", report=bytes(100_000))).result(60)
    assert (store.errors, store.healthy) == (1, False)
    store._connection.execute("PRAGMA max_page_count = 100000").fetchone()
    store.submit(write("a", report=b"fits")).result(60)
    assert store.healthy
    store.close()

    assert stored(tmp_path / "s.sqlite")[0].reports == [(1.0, b"fits")]


@pytest.mark.fault
@pytest.mark.parametrize("where", [0, 4096], ids=["no database", "torn page"])
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: int
) -> None:
    """The service starts anew, keeps the damaged file for people and says where."""
    path = tmp_path / "s.sqlite"
    store = Store(path)
    for i in range(50):
        store.submit(write(f"job-{i}", snapshot=bytes(1000)))
    store.close()
    damaged = bytearray(path.read_bytes())
    damaged[where : where + 2000] = b"\xa5" * 2000
    path.write_bytes(damaged)

    assert stored(path) == []
    (aside,) = tmp_path.glob("s.sqlite.damaged-*")
    assert aside.read_bytes() == damaged
    assert f"moved to {aside}" in caplog.text


def test_a_store_of_a_newer_libra_is_left_alone(tmp_path: Path) -> None:
    """An older Libra does not guess at tables that it does not know."""
    path = tmp_path / "s.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(StoreError, match="schema 99, this Libra knows 1"):
        Store(path)


def test_two_balancers_cannot_share_a_store(tmp_path: Path) -> None:
    """The second would serve policies that the first does not know of."""
    store = Store(tmp_path / "s.sqlite")
    with pytest.raises(StoreError, match="another balancer uses it"):
        Store(tmp_path / "s.sqlite")
    store.close()


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    """Kill the process in mid-load: every acknowledged report is known after the restart."""
    path = tmp_path / "s.sqlite"
    acknowledged: list[tuple[int, int]] = []

    with running_balancer(path) as running:

        def load(rank: int) -> None:
            for sequence in range(100_000):
                try:
                    response = running.send(make_report("j", sequence=sequence, rank=rank))
                except httpx.HTTPError:
                    return
                if response.status_code == 202:
                    acknowledged.append((rank, sequence))

        with ThreadPoolExecutor(2) as pool:
            senders = [pool.submit(load, rank) for rank in range(2)]
            try:
                wait_for(lambda: len(acknowledged) >= 10, 60)
                mode = running.client.put("/api/v1/jobs/j/mode", json={"mode": "frozen"})
                mode.raise_for_status()
                enough = len(acknowledged) + 4
                wait_for(lambda: len(acknowledged) >= enough, 60)
            finally:
                running.process.kill()
            for sender in senders:
                sender.result(60)

    with running_balancer(path) as running:
        summary = running.view("j")
        answers = [
            running.send(make_report("j", sequence=sequence, rank=rank)).json()["duplicate"]
            for rank, sequence in acknowledged
        ]

    assert running.process.returncode == -signal.SIGKILL
    assert all(answers)
    assert len(acknowledged) <= summary["reports"] <= len(acknowledged) + 2
    assert summary["mode"] == "frozen"
