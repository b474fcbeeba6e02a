"""Opening an SQLite file that is ours, whole, and nobody else's; setting a damaged one aside."""

import contextlib
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from libra.balancer.mounts import mount_of
from libra.balancer.sqlite_schema import (
    APPLICATION_ID,
    MIGRATIONS,
    SCHEMA,
    UNRELEASED_SCHEMA,
    Migration,
    prepare,
)
from libra.balancer.storage import StoreError

logger = logging.getLogger(__name__)

_MAGIC = b"SQLite format 3\0"
# Where the header keeps user_version and application_id, big-endian.
_VERSION_AT, _APPLICATION_AT = 60, 68
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# A lock that cannot be asked for; and one that a network file system answers nonsense to.
_LOCKLESS = (sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_RDLOCK, sqlite3.SQLITE_PROTOCOL)
_HEAD_BYTES, _PAGE_BYTES = 1 << 16, 4096


class DamagedError(Exception):
    """The file cannot be used and has to be set aside; the message says why."""


def open_file(
    path: Path, mountinfo: str, migrations: Mapping[int, Migration] = MIGRATIONS
) -> tuple[sqlite3.Connection, Path | None]:
    """Return the checked connection, and where a damaged file was set aside to.

    Raises:
        StoreError: the file is not Libra's, newer, in use, or not to be written.
    """
    try:
        return _connect(path, mountinfo, migrations), None
    except DamagedError as error:
        why = str(error)
    aside = _set_aside(path)
    logger.error("The store %s %s: moved to %s, beginning anew.", path, why, aside)
    try:
        return _connect(path, mountinfo, migrations), aside
    except DamagedError as error:
        raise StoreError(f"cannot open the store {path}: {error}") from error


def beside(path: Path, suffix: str) -> Path:
    """Return the name of a file that belongs to a store."""
    return path.with_name(path.name + suffix)


def _connect(path: Path, mountinfo: str, migrations: Mapping[int, Migration]) -> sqlite3.Connection:
    try:
        # Looked at before SQLite does: it would write to a foreign file just by opening it.
        _inspect(path)
        log = _journal(path, mountinfo)
        connection = sqlite3.connect(
            path, timeout=1.0, isolation_level=None, check_same_thread=False
        )
    except (sqlite3.Error, OSError) as error:
        raise StoreError(_explain(path, error)) from error
    try:
        _set_up(connection, log)
        prepare(connection, migrations)
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF in _DAMAGED:
            raise DamagedError(f"is damaged ({error})") from error
        raise StoreError(_explain(path, error)) from error
    except StoreError as error:
        connection.close()
        raise StoreError(f"cannot open the store {path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _inspect(path: Path) -> None:
    """Raise for a file that is somebody else's, or of no use."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return
    if not head.startswith(_MAGIC):
        if b"libra_steps" in head or not head.strip(b"\0"):
            raise DamagedError("is damaged (its header is gone)")
        raise StoreError(f"cannot open the store {path}: it is no SQLite file, and left alone")
    (version,) = struct.unpack_from(">i", head, _VERSION_AT)
    (application,) = struct.unpack_from(">i", head, _APPLICATION_AT)
    # One page without a log has no table yet: a crash has left it at its very beginning.
    bare = application == version == 0 and path.stat().st_size <= _PAGE_BYTES
    if application == APPLICATION_ID or (bare and not beside(path, "-wal").exists()):
        return
    if application == 0 and version == UNRELEASED_SCHEMA and b"reports_of_job" in head:
        raise DamagedError(f"has schema {version} of an unreleased Libra, not {SCHEMA}")
    raise StoreError(
        f"cannot open the store {path}: it is an SQLite file of another program "
        f"(application_id {application:#x}), and left alone"
    )


def _journal(path: Path, mountinfo: str) -> str:
    """Return the journal mode that the path's file system allows."""
    mount = mount_of(path.parent.resolve(), mountinfo)
    if mount is None or not mount.over_network:
        return "WAL"
    if mount.local_locks:
        raise StoreError(
            f"cannot open the store {path}: {mount.point} is {mount.kind} mounted with "
            f"{mount.local_locks}, so another machine's balancer would not see our lock; "
            "use a local disk or PostgreSQL"
        )
    logger.warning(
        "The store %s lies on %s (%s, over a network): kept without a write-ahead log, slower. "
        "A local disk or PostgreSQL is better.",
        *(path, mount.point, mount.kind),
    )
    return "DELETE"


def _set_up(connection: sqlite3.Connection, journal: str) -> None:
    # Before WAL: then no shared memory file is needed, and a second balancer is locked out.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if pages == 0:
        # Before the first table: a file cannot learn later to give pages back.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        # Before WAL: then it stands in the file itself, also when a crash leaves the rest behind.
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA synchronous = FULL")
    # Takes the lock for good, in whatever journal mode; read-only files fail here.
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("COMMIT")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise DamagedError(f"is damaged ({verdict})")


def _explain(path: Path, error: sqlite3.Error | OSError) -> str:
    code = error.sqlite_errorcode if isinstance(error, sqlite3.Error) else None
    if not path.parent.is_dir():
        return f"cannot open the store {path}: there is no directory {path.parent}"
    if code in _LOCKLESS:
        return (
            f"cannot open the store {path}: files cannot be locked there ({error}); "
            "use a local disk or PostgreSQL"
        )
    if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:
        return f"cannot open the store {path}: another balancer uses it"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"cannot open the store {path}: no permission to write there"
    return f"cannot open the store {path}: {error}"


def _set_aside(path: Path) -> Path:
    """Rename the file and its write-ahead log; return the new name of the file."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = beside(path, f".damaged-{stamp}-{os.getpid()}")
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            beside(path, suffix).rename(beside(aside, suffix))
    return aside
