"""The tables of an SQLite store, and the way there from older ones.

Every table's name begins with ``libra_``: by that a damaged file is known to be ours.
"""

import sqlite3
from collections.abc import Callable, Mapping

from libra.balancer.failpoints import failpoint
from libra.balancer.storage import StoreError

SCHEMA = 2
# "Libr", in the file's header: what carries another number is not ours.
APPLICATION_ID = 0x4C696272
# Of versions that were never released; it is set aside, not read.
UNRELEASED_SCHEMA = 1

_TABLES = (
    """
    CREATE TABLE libra_jobs (
        name TEXT PRIMARY KEY, at_s REAL NOT NULL, finished INTEGER NOT NULL,
        core BLOB NOT NULL, summary BLOB NOT NULL)
    """,
    """
    CREATE TABLE libra_steps (
        id INTEGER PRIMARY KEY, job TEXT NOT NULL, attempt INTEGER NOT NULL,
        step INTEGER NOT NULL, at_s REAL NOT NULL, num_bytes INTEGER NOT NULL, body BLOB NOT NULL,
        UNIQUE (job, attempt, step))
    """,
    # Sums up a job's bytes, and finds its newest steps, without reading them.
    "CREATE INDEX libra_steps_of_job ON libra_steps (job, id, num_bytes)",
    # A transaction without a job writes this row, to see whether the disk takes it.
    "CREATE TABLE libra_trial (id INTEGER PRIMARY KEY, count INTEGER NOT NULL)",
    "INSERT INTO libra_trial VALUES (1, 0)",
)

Migration = Callable[[sqlite3.Connection], None]
# From a schema to the next one; each runs in the transaction that raises the version.
MIGRATIONS: Mapping[int, Migration] = {}


def prepare(connection: sqlite3.Connection, migrations: Mapping[int, Migration]) -> None:
    """Make the tables of a new file, or bring those of an older one up to date.

    Raises:
        StoreError: the file was written by a newer Libra, or a step on the way is not known.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    known = max(migrations, default=SCHEMA - 1) + 1
    if version > known:
        raise StoreError(
            f"the store has schema {version}, this Libra knows {known}: "
            "it was written by a newer Libra"
        )
    if version == 0:
        _step(connection, known, _make)
        return
    for number in range(version, known):
        if number not in migrations:
            raise StoreError(f"the store has schema {version}: no way to {known} is known")
        _step(connection, number + 1, migrations[number])


def _make(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


def _step(connection: sqlite3.Connection, version: int, change: Migration) -> None:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        change(connection)
        failpoint("during_migration")
        connection.execute(f"PRAGMA user_version = {version}")
