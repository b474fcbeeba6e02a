"""The balancer's memory in one SQLite file, of one balancer at a time.

The lock is SQLite's own and dies with the process. What was written is durable when
``transact`` returns: a write-ahead log, fsynced with every commit.
"""

import logging
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from libra.balancer.failpoints import failpoint
from libra.balancer.mounts import read_mountinfo
from libra.balancer.sqlite_file import beside, open_file
from libra.balancer.sqlite_schema import MIGRATIONS, Migration
from libra.balancer.storage import (
    DropJob,
    PutJob,
    PutStep,
    StoredJob,
    StoredSummary,
    StoreError,
    Write,
)

logger = logging.getLogger(__name__)

# Rows dropped in one transaction, and transactions in one call: no write waits long for them.
_DROPPED_ROWS, _DROPPING_ROUNDS = 1000, 20

_PUT_JOB = """
    INSERT INTO libra_jobs (name, at_s, finished, core, summary) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET at_s = excluded.at_s, finished = excluded.finished,
        core = excluded.core, summary = excluded.summary
"""
# A step that is written again keeps its place in the order.
_PUT_STEP = """
    INSERT INTO libra_steps (job, attempt, step, at_s, num_bytes, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (job, attempt, step) DO UPDATE SET at_s = excluded.at_s,
        num_bytes = excluded.num_bytes, body = excluded.body
"""
_SUMMARIES = """
    SELECT name, at_s, finished, length(core) + length(summary) + coalesce(
        (SELECT sum(num_bytes) FROM libra_steps WHERE job = name), 0), summary
    FROM libra_jobs ORDER BY name
"""


class SqliteBackend:
    """Open the file at ``path``, or raise ``StoreError``.

    Attributes:
        set_aside: where a damaged file was moved to when this one was begun.
    """

    def __init__(
        self,
        path: Path,
        *,
        mountinfo: str | None = None,
        migrations: Mapping[int, Migration] = MIGRATIONS,
    ) -> None:
        self.path = path
        self.label = str(path)
        text = read_mountinfo() if mountinfo is None else mountinfo
        self._connection, self.set_aside = open_file(path, text, migrations)
        self._identity = _identity(path)

    def try_lead(self) -> bool:
        """Return True: who has opened the file holds its lock."""
        return True

    def load(self, job: str, *, last_steps: int) -> StoredJob | None:
        with self._saying("read"):
            row = self._connection.execute(
                "SELECT at_s, core FROM libra_jobs WHERE name = ?", (job,)
            ).fetchone()
            if row is None:
                return None
            steps = self._connection.execute(
                "SELECT body FROM libra_steps WHERE id IN (SELECT id FROM libra_steps "
                "WHERE job = ? ORDER BY id DESC LIMIT ?) ORDER BY id",
                (job, last_steps),
            ).fetchall()
        return StoredJob(job=job, at_s=row[0], core=row[1], steps=[body for (body,) in steps])

    def summaries(self) -> list[StoredSummary]:
        with self._saying("read"):
            rows = self._connection.execute(_SUMMARIES).fetchall()
        return [
            StoredSummary(job=job, at_s=at_s, finished=bool(done), num_bytes=size, summary=summary)
            for job, at_s, done, size, summary in rows
        ]

    def transact(self, writes: Sequence[Write]) -> None:
        """Write all or nothing; without writes, see whether the disk takes any."""
        with self._saying("write"):
            if _identity(self.path) != self._identity:
                raise StoreError(f"the store {self.path} was moved or deleted: put it back")
            with self._transaction():
                for write in writes:
                    self._write(write)
                if not writes:
                    self._connection.execute("UPDATE libra_trial SET count = count + 1")
                failpoint("before_commit")
            failpoint("after_commit")

    def prune(self, *, before_s: float, max_bytes: int, keep: Collection[str]) -> list[str]:
        """Drop what is too old or too much, a bounded piece at a time: call it again."""
        with self._saying("write"):
            dropped, rows = self._drop_old(before_s, keep), 0
            for _ in range(_DROPPING_ROUNDS):
                if self._used_bytes() <= max_bytes:
                    break
                rows += self._drop_oldest_steps()
            if dropped or rows:
                # A script runs to its end; a statement would give back one page only.
                self._connection.executescript("PRAGMA incremental_vacuum(10000);")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return dropped

    def size_bytes(self) -> int:
        files = (self.path, beside(self.path, "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        with self._saying("close"):
            self._connection.close()

    def _write(self, write: Write) -> None:
        execute = self._connection.execute
        match write:
            case PutJob():
                row = (write.job, write.at_s, write.finished, write.core, write.summary)
                execute(_PUT_JOB, row)
                failpoint("between_core_and_steps")
            case PutStep():
                place = (write.job, write.attempt, write.step, write.at_s)
                execute(_PUT_STEP, (*place, len(write.body), write.body))
            case DropJob():
                execute("DELETE FROM libra_steps WHERE job = ?", (write.job,))
                execute("DELETE FROM libra_jobs WHERE name = ?", (write.job,))

    def _drop_old(self, before_s: float, keep: Collection[str]) -> list[str]:
        old = self._connection.execute(
            "SELECT name FROM libra_jobs WHERE finished AND at_s < ?", (before_s,)
        ).fetchall()
        dropped = []
        for name in [name for (name,) in old if name not in keep][:_DROPPING_ROUNDS]:
            with self._transaction():
                self._write(DropJob(job=name))
            dropped.append(name)
        return dropped

    def _drop_oldest_steps(self) -> int:
        with self._transaction():
            cursor = self._connection.execute(
                "DELETE FROM libra_steps WHERE id IN "
                "(SELECT id FROM libra_steps ORDER BY id LIMIT ?)",
                (_DROPPED_ROWS,),
            )
        return cursor.rowcount

    def _used_bytes(self) -> int:
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def _saying(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"cannot {doing} the store {self.path}: {error}") from error


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells this file from any other that may take its name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
