"""One SQLite file: what was written is there, what is not ours is left alone."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from libra.balancer.sqlite_schema import APPLICATION_ID, SCHEMA, Migration
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.storage import DropJob, PutJob, PutStep, StoredJob, StoreError, Write


def core(job: str, body: bytes = b"core", *, at_s: float = 1.0, finished: bool = False) -> PutJob:
    return PutJob(job=job, at_s=at_s, core=body, summary=b"{}", finished=finished)


def step(job: str, number: int, body: bytes = b"step", *, attempt: int = 0) -> PutStep:
    return PutStep(job=job, attempt=attempt, step=number, at_s=1.0, body=body)


@contextmanager
def opened(path: Path, **options: object) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(path, **options)  # type: ignore[arg-type]
    try:
        yield backend
    finally:
        backend.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


def test_a_job_is_its_newest_core_and_its_steps(path: Path) -> None:
    """A core replaces the one before, steps add up in order, and one written again keeps its
    place."""
    with opened(path) as backend:
        backend.transact([core("a", b"old"), step("a", 1), step("b", 1), core("b")])
        backend.transact([core("a", b"new"), step("a", 2), step("a", 3, b"3")])
        backend.transact([step("a", 1, b"lean")])
    with opened(path) as backend:
        whole, newest = (backend.load("a", last_steps=n) for n in (9, 2))
        nobody = backend.load("c", last_steps=9)
        sizes = {s.job: s.num_bytes for s in backend.summaries()}

    assert whole == StoredJob(job="a", at_s=1.0, core=b"new", steps=[b"lean", b"step", b"3"])
    assert newest is not None
    assert newest.steps == [b"step", b"3"]
    assert nobody is None
    assert sizes == {"a": len(b"new{}leanstep3"), "b": len(b"core{}step")}


def test_a_dropped_job_is_gone(path: Path) -> None:
    """Its core and its steps, and nothing of any other."""
    with opened(path) as backend:
        backend.transact([core("a"), step("a", 1), core("b"), step("b", 1), DropJob(job="a")])

        assert backend.load("a", last_steps=9) is None
        assert [s.job for s in backend.summaries()] == ["b"]


def test_every_commit_is_synced(path: Path) -> None:
    """A write-ahead log with full synchronisation: the one setting that survives a power cut."""
    with opened(path) as backend:
        assert pragmas(backend) == ["wal", 2, "exclusive"]


def pragmas(backend: SqliteBackend) -> list[object]:
    names = ("journal_mode", "synchronous", "locking_mode")
    return [backend._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]


def test_old_jobs_are_dropped_and_active_ones_kept(path: Path) -> None:
    """Retention by age: ended jobs only, and none that is in use."""
    with opened(path) as backend:
        backend.transact([core(name, finished=name != "on") for name in ("old", "used", "on")])
        backend.transact([core("new", at_s=9.0, finished=True), step("old", 1)])
        dropped = backend.prune(before_s=5.0, max_bytes=1 << 30, keep={"used"})

        assert dropped == ["old"]
        assert [s.job for s in backend.summaries()] == ["new", "on", "used"]


def test_the_oldest_steps_make_room(path: Path) -> None:
    """Retention by bytes: the file shrinks below the limit, and what is newest stays."""
    with opened(path) as backend:
        backend.transact([core("a"), *(step("a", i, bytes([i % 256]) * 2000) for i in range(3000))])
        before = backend._used_bytes()
        backend.prune(before_s=0.0, max_bytes=before // 2, keep={"a"})
        after = backend._used_bytes()
        stored = backend.load("a", last_steps=9999)

    assert stored is not None
    assert after <= before // 2
    assert 500 < len(stored.steps) < 2000
    assert stored.steps[-1][0] == 2999 % 256
    assert path.stat().st_size < 0.6 * before


def test_two_balancers_cannot_share_a_store(path: Path) -> None:
    """The second would serve policies that the first does not know of."""
    with opened(path), pytest.raises(StoreError, match="another balancer uses it"):
        SqliteBackend(path)


def test_a_store_of_a_newer_libra_is_left_alone(path: Path) -> None:
    """An older Libra does not guess at tables that it does not know."""
    with opened(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(StoreError, match=f"schema 99, this Libra knows {SCHEMA}"):
        SqliteBackend(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("number", [0, 0x12345678])
def test_a_foreign_database_is_not_touched(path: Path, number: int) -> None:
    """Another program's file keeps every byte, its write-ahead log included."""
    script = (
        "import sqlite3, os; c = sqlite3.connect(%r); c.execute('PRAGMA journal_mode = WAL');"
        "c.execute('PRAGMA application_id = %d'); c.execute('CREATE TABLE t (x)'); c.commit();"
        "os._exit(0)"
    )
    subprocess.run(["python3", "-c", script % (str(path), number)], check=True)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}

    with pytest.raises(StoreError, match="of another program"):
        SqliteBackend(path)
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_file_that_is_no_database_is_not_touched(path: Path) -> None:
    """A mistyped path must not cost anybody a file."""
    path.write_text("dear diary\n" * 1000)
    with pytest.raises(StoreError, match="no SQLite file"):
        SqliteBackend(path)

    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_text() == "dear diary\n" * 1000


@pytest.mark.fault
@pytest.mark.parametrize("where", [0, 100, 4096], ids=["header", "first page", "torn page"])
def test_a_damaged_file_is_set_aside(
    path: Path, caplog: pytest.LogCaptureFixture, where: int
) -> None:
    """A new one is begun; the damaged one is kept for people and the log says where."""
    with opened(path) as backend:
        backend.transact([core(f"job-{i}", bytes(1000)) for i in range(50)])
    damaged = bytearray(path.read_bytes())
    damaged[where : where + 2000] = b"\xa5" * 2000
    path.write_bytes(damaged)
    with opened(path) as backend:
        assert backend.summaries() == []
        aside = backend.set_aside

    assert aside is not None
    assert aside.read_bytes() == damaged
    assert f"moved to {aside}" in caplog.text


def test_an_unreleased_store_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Schema 1 was never released: nothing can read it, and nothing deletes it."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE reports (job TEXT); CREATE INDEX reports_of_job ON reports (job);"
        "PRAGMA user_version = 1;"
    )
    connection.close()
    with opened(path) as backend:
        assert backend.set_aside is not None
    assert "schema 1 of an unreleased Libra" in caplog.text


def made_up(log: list[int]) -> Mapping[int, Migration]:
    """A way from today's schema to one that there is not yet."""

    def migrate(connection: sqlite3.Connection) -> None:
        log.append(SCHEMA)
        connection.execute("ALTER TABLE libra_jobs ADD COLUMN note TEXT")

    return {SCHEMA: migrate}


def test_an_older_store_is_brought_up_to_date_once(path: Path) -> None:
    """Jobs survive the migration, and an older Libra then refuses the file."""
    log: list[int] = []
    with opened(path) as backend:
        backend.transact([core("a")])
    for _ in range(2):
        with opened(path, migrations=made_up(log)) as backend:
            assert [s.job for s in backend.summaries()] == ["a"]

    assert log == [SCHEMA]
    with pytest.raises(StoreError, match=f"schema {SCHEMA + 1}, this Libra knows {SCHEMA}"):
        SqliteBackend(path)


@pytest.mark.fault
def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    """Table and version are of one transaction: the next start tries again from the same place."""

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE libra_steps")
        raise StoreError("no")

    with opened(path) as backend:
        backend.transact([core("a"), step("a", 1)])
    with pytest.raises(StoreError, match="no"):
        SqliteBackend(path, migrations={SCHEMA: fail})
    with opened(path) as backend:
        stored = backend.load("a", last_steps=9)

    assert stored is not None
    assert stored.steps == [b"step"]


MOUNTS = "30 1 0:9 / {point} rw - {kind} server:/x rw{options}\n"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "fuse.sshfs", "9p", "ceph", "gpfs"])
def test_a_network_file_system_gets_no_write_ahead_log(
    path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Its memory could not be shared: a rollback journal it is, and the log says why."""
    mounts = MOUNTS.format(point=path.parent, kind=kind, options="")
    with opened(path, mountinfo=mounts) as backend:
        backend.transact([core("a")])
        assert pragmas(backend) == ["delete", 2, "exclusive"]

    assert f"({kind}, over a network)" in caplog.text
    with opened(path) as backend:  # moved to a local disk
        assert [s.job for s in backend.summaries()] == ["a"]


@pytest.mark.parametrize("option", ["nolock", "local_lock=all", "localflock"])
def test_a_network_file_system_without_locks_is_refused(path: Path, option: str) -> None:
    """Two machines would write one file, each sure to be alone."""
    mounts = MOUNTS.format(point=path.parent, kind="nfs", options=f",{option}")
    with pytest.raises(StoreError, match=f"nfs mounted with {option}"):
        SqliteBackend(path, mountinfo=mounts)

    assert not path.exists()


@pytest.mark.fault
def test_a_full_disk_fails_whole_and_recovers(tmp_path: Path) -> None:
    """A real file system without room: nothing of the write is there, and later all of it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        with opened(disk / "s.sqlite") as backend:
            backend.transact([core("a")])
            bulk: list[Write] = [core("b"), *(step("b", i, os.urandom(100_000)) for i in range(20))]
            for _ in range(3):
                with pytest.raises(StoreError, match="full"):
                    backend.transact(bulk)
            names = [s.job for s in backend.summaries()]
            subprocess.run(["mount", "-o", "remount,size=9m", str(disk)], check=True)
            backend.transact(bulk)

            assert names == ["a"]
            assert [s.job for s in backend.summaries()] == ["a", "b"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.fault
def test_a_store_that_was_moved_away_takes_nothing(path: Path) -> None:
    """What is written to a file without a name would be gone with the process."""
    with opened(path) as backend:
        backend.transact([core("a")])
        path.rename(path.with_name("moved"))
        with pytest.raises(StoreError, match="moved or deleted"):
            backend.transact([core("b")])
        path.with_name("moved").rename(path)
        backend.transact([core("b")])

        assert [s.job for s in backend.summaries()] == ["a", "b"]


def test_a_trial_without_writes_is_one(path: Path) -> None:
    """It goes to the disk, so that it fails when the disk does."""
    with opened(path) as backend:
        before = backend._connection.execute("SELECT count FROM libra_trial").fetchone()
        backend.transact([])
        after = backend._connection.execute("SELECT count FROM libra_trial").fetchone()

    assert (before, after) == ((0,), (1,))


def test_the_file_says_whose_it_is_from_the_start(path: Path) -> None:
    """In its first page, not in the log: a crash right after the start must not orphan it."""
    with opened(path):
        assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")


@pytest.mark.fault
def test_a_read_only_store_fails_and_recovers(path: Path) -> None:
    """As when a disk is mounted again for reading only: an error each time, and no more."""
    with opened(path) as backend:
        backend._connection.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match="readonly"):
            backend.transact([core("a")])
        backend._connection.execute("PRAGMA query_only = 0")
        backend.transact([core("a")])

        assert [s.job for s in backend.summaries()] == ["a"]
