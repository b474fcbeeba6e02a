"""One writer thread: what waits together is written together, and nobody who waits is forgotten."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.storage import LostLeadError, PutJob, StoreError, StoreFullError, Write
from libra.balancer.store import Store
from tests.disk import Disk, failing_disk


def core(job: str, body: bytes = b"core") -> PutJob:
    return PutJob(job=job, at_s=1.0, core=body, summary=b"{}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(SqliteBackend(tmp_path / "s.sqlite"), queue_size=200)
    yield made
    made.close()


def names(store: Store) -> list[str]:
    return [s.job for s in store.ask(lambda backend: backend.summaries()).result(60)]


def test_many_writes_share_a_transaction(disk: Disk, store: Store) -> None:
    """A hundred writes that came while the disk was busy cost one fsync, not a hundred."""
    disk.keep_busy()
    taken = [store.submit([core("first")])]
    assert disk.reached.wait(60)
    taken += [store.submit([core(f"job-{i}")]) for i in range(100)]
    disk.free.set()
    for future in taken:
        future.result(60)

    assert store.commits.count == 1 + 1
    assert len(names(store)) == 101


def test_a_question_sees_what_was_written_before_it(disk: Disk, store: Store) -> None:
    """Questions keep their place between writes, however they were grouped."""
    disk.keep_busy()
    store.submit([core("a")])
    before = store.ask(lambda backend: [s.job for s in backend.summaries()])
    store.submit([core("b")])
    disk.free.set()

    assert before.result(60) == ["a"]
    assert names(store) == ["a", "b"]


@pytest.mark.fault
def test_a_slow_disk_fills_the_queue(disk: Disk, store: Store) -> None:
    """When the disk does not keep up, writes are refused and memory stays bounded."""
    disk.keep_busy()
    taken = [store.submit([core("a")])]
    assert disk.reached.wait(60)
    taken += [store.submit([core("a")]) for _ in range(200)]
    with pytest.raises(StoreFullError, match="200 writes wait"):
        store.submit([core("one too many")])
    assert store.full
    disk.free.set()
    for future in taken:
        future.result(60)


@pytest.mark.fault
def test_a_failed_transaction_is_told_to_all_in_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted each time, logged once, and the store works again afterwards."""
    with failing_disk():
        for _ in range(3):
            with pytest.raises(StoreError, match="full"):
                store.submit([core("a")]).result(60)
        assert (store.errors, store.healthy) == (3, False)
    store.submit([]).result(60)

    assert store.healthy
    assert caplog.text.count("Cannot write the store") == 1
    assert "can be written again" in caplog.text


@pytest.mark.fault
@pytest.mark.parametrize("work", ["write", "question"])
def test_whatever_a_backend_raises_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """A bug in it is a ``StoreError`` for who waits, and the writer thread goes on."""

    def fail(*_: object) -> None:
        raise KeyError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "transact", fail)
        asked: Callable[[], object] = {
            "write": lambda: store.submit([core("a")]).result(60),
            "question": lambda: store.ask(fail).result(60),
        }[work]
        with pytest.raises(StoreError, match="unexpected KeyError"):
            asked()
    store.submit([core("b")]).result(60)

    assert names(store) == ["b"]


@pytest.mark.fault
def test_a_lost_lead_is_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads now is for another to find out; here it is only told."""

    def lost(_: SqliteBackend, writes: Sequence[Write]) -> None:
        raise LostLeadError("another balancer has taken over")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "transact", lost)
        with pytest.raises(LostLeadError):
            store.submit([core("a")]).result(60)

    assert store.lost_lead


def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    """``close`` is no loss; afterwards nothing is taken."""
    store = Store(SqliteBackend(tmp_path / "s.sqlite"))
    futures = [store.submit([core(f"job-{i}")]) for i in range(20)]
    store.close()
    for future in futures:
        future.result(0)
    with pytest.raises(StoreError, match="closed"):
        store.submit([core("late")])
    again = Store(SqliteBackend(tmp_path / "s.sqlite"))
    stored = names(again)
    again.close()

    assert len(stored) == 20


@pytest.mark.fault
def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: Path, disk: Disk) -> None:
    """At the deadline those who wait are told, and the process may end."""
    store = Store(SqliteBackend(tmp_path / "s.sqlite"))
    disk.keep_busy()
    store.submit([core("stuck")])
    assert disk.reached.wait(60)
    waiting = store.submit([core("waiting")])
    store.close(timeout_s=0.05)
    with pytest.raises(StoreError, match="closed"):
        waiting.result(0)
    disk.free.set()
    writers = [thread for thread in threading.enumerate() if thread.name == "libra-store"]
    for writer in writers:
        writer.join(60)

    assert not any(writer.is_alive() for writer in writers)
    store.backend.close()
