"""The balancer's memory on disk: one SQLite file, one writer thread, group commit.

A job is kept as its newest snapshot and the reports that came after it. A write is done when
its transaction is fsynced, and never before, so whatever was acknowledged is there after a
kill -9. The file belongs to one balancer at a time: the lock is SQLite's own and dies with the
process.
"""

import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

logger = logging.getLogger(__name__)

SCHEMA = 1
_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, snapshot BLOB NOT NULL, at_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS reports (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, at_s REAL NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS reports_of_job ON reports (job, id);
PRAGMA user_version = 1;
COMMIT;
"""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MAX_BATCH = 1024


class StoreError(Exception):
    """The store cannot be opened or written; the message is one sentence for people."""


class StoreFullError(StoreError):
    """Too many writes wait for the disk; try again later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """One change of a job: a snapshot replaces all that is stored of it, a report adds to it."""

    job: str
    at_s: float
    report: bytes | None = None
    snapshot: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJob:
    """What the store knows of a job: its snapshot, then (time, body) of each later report.

    There is no snapshot when the write that held the first one failed and a later one did not.
    """

    name: str
    snapshot: bytes | None = None
    reports: list[tuple[float, bytes]] = field(default_factory=list)


class Store:
    """Open the file at ``path``, or raise ``StoreError``. Thread-safe to ``submit`` to."""

    def __init__(
        self, path: Path, *, queue_size: int = 4096, commit_interval_s: float = 0.05
    ) -> None:
        self.path = path
        self.capacity = queue_size
        self.commits = 0
        self.commit_seconds = 0.0
        self.errors = 0
        self.healthy = True
        self._commit_interval_s = commit_interval_s
        self._queue: queue.Queue[tuple[Write, Future[None]] | None] = queue.Queue(queue_size)
        self._connection = _open(path)
        self._closed = False
        self._writer = threading.Thread(target=self._run, name="libra-store", daemon=True)
        self._writer.start()

    @property
    def waiting(self) -> int:
        """Number of writes that the writer has not taken up yet."""
        return self._queue.qsize()

    @property
    def full(self) -> bool:
        return self.waiting >= self.capacity

    @property
    def size_bytes(self) -> int:
        files = (self.path, _beside(self.path, "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def load(self) -> list[StoredJob]:
        """Return every job; call it before the first ``submit``."""
        try:
            jobs = {
                name: StoredJob(name=name, snapshot=snapshot)
                for name, snapshot in self._connection.execute("SELECT name, snapshot FROM jobs")
            }
            rows = self._connection.execute("SELECT job, at_s, body FROM reports ORDER BY id")
            for name, at_s, body in rows:
                jobs.setdefault(name, StoredJob(name=name)).reports.append((at_s, body))
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store {self.path}: {error}") from error
        return list(jobs.values())

    def submit(self, write: Write) -> Future[None]:
        """Queue a write; the future is done once it is on disk, or holds a ``StoreError``."""
        if self._closed:
            raise StoreError(f"the store {self.path} is closed")
        future: Future[None] = Future()
        try:
            self._queue.put_nowait((write, future))
        except queue.Full:
            raise StoreFullError(f"{self.capacity} writes wait for the disk already") from None
        return future

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is queued and close the file."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        self._writer.join(timeout_s)
        if self._writer.is_alive():
            logger.error("The store %s did not close within %g s.", self.path, timeout_s)
            return
        self._connection.close()

    def _run(self) -> None:
        going = True
        while going:
            batch = [self._queue.get()]
            deadline = time.monotonic() + self._commit_interval_s
            with contextlib.suppress(queue.Empty):
                while batch[-1] is not None and len(batch) < _MAX_BATCH:
                    batch.append(self._queue.get(timeout=max(0.0, deadline - time.monotonic())))
            going = batch[-1] is not None
            self._commit([item for item in batch if item is not None])

    def _commit(self, batch: list[tuple[Write, Future[None]]]) -> None:
        start = time.monotonic()
        failure = self._transact([write for write, _ in batch])
        self.commits += 1
        self.commit_seconds += time.monotonic() - start
        for _, future in batch:
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

    def _transact(self, writes: list[Write]) -> StoreError | None:
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                for write in writes:
                    self._write(write)
        except sqlite3.Error as error:
            self.errors += 1
            self.healthy = False
            logger.error("Cannot write the store %s: %s.", self.path, error)
            return StoreError(f"cannot write the store: {error}")
        self.healthy = True
        return None

    def _write(self, write: Write) -> None:
        if write.snapshot is None:
            self._connection.execute(
                "INSERT INTO reports (job, at_s, body) VALUES (?, ?, ?)",
                (write.job, write.at_s, write.report),
            )
            return
        self._connection.execute("DELETE FROM reports WHERE job = ?", (write.job,))
        self._connection.execute(
            "INSERT OR REPLACE INTO jobs (name, snapshot, at_s) VALUES (?, ?, ?)",
            (write.job, write.snapshot, write.at_s),
        )


def _open(path: Path) -> sqlite3.Connection:
    """Return the checked connection; a damaged file is set aside and a new one begun."""
    try:
        return _connect(path)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in _DAMAGED:
            raise StoreError(_explain(path, error)) from error
        damage = str(error)
    aside = _set_aside(path)
    logger.error("The store %s is damaged (%s): moved to %s, beginning anew.", path, damage, aside)
    try:
        return _connect(path)
    except sqlite3.Error as error:
        raise StoreError(_explain(path, error)) from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        # Before WAL: then no shared memory file is needed, and a second balancer is locked out.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise StoreError(
                f"the store {path} has schema {version}, this Libra knows {SCHEMA}: "
                "it was written by a newer Libra"
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            damage = sqlite3.DatabaseError(verdict)
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def _explain(path: Path, error: sqlite3.Error) -> str:
    if not path.parent.is_dir():
        return f"cannot open the store {path}: there is no directory {path.parent}"
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return f"cannot open the store {path}: another balancer uses it"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"cannot open the store {path}: no permission to write there"
    return f"cannot open the store {path}: {error}"


def _set_aside(path: Path) -> Path:
    """Rename the file and its write-ahead log; return the new name of the file."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = _beside(path, f".damaged-{stamp}-{os.getpid()}")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            _beside(path, suffix).rename(_beside(aside, suffix))
    return aside


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
