"""The tables of a PostgreSQL store, and the steps from one version of them to the next.

Only what every version needs is made by whoever comes first. Later steps are for the one that
leads: a newer balancer that stands by changes nothing under an older one that is at work.
"""

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from libra.balancer.storage import StoreError

# Bodies are stored as they are (EXTERNAL): they do not compress, and trying costs time.
_FIRST = """
CREATE TABLE lead (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    generation bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    holder text NOT NULL);
INSERT INTO lead (generation, expires_at, holder) VALUES (0, '-infinity', '');
CREATE TABLE jobs (
    job text PRIMARY KEY,
    at_s double precision NOT NULL,
    finished boolean NOT NULL,
    summary bytea NOT NULL,
    core bytea NOT NULL);
CREATE TABLE steps (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job text NOT NULL,
    attempt bigint NOT NULL,
    step bigint NOT NULL,
    at_s double precision NOT NULL,
    body bytea NOT NULL,
    UNIQUE (job, attempt, step));
CREATE INDEX steps_of_job ON steps (job, id);
CREATE TABLE step_bytes (job text PRIMARY KEY, num_bytes bigint NOT NULL);
ALTER TABLE jobs ALTER COLUMN core SET STORAGE EXTERNAL;
ALTER TABLE steps ALTER COLUMN body SET STORAGE EXTERNAL;
"""
MIGRATIONS: tuple[LiteralString, ...] = (_FIRST,)


def prepare(connection: "psycopg.Connection[Any]", schema: str, label: str, lock: int) -> None:
    """Make the first tables where there are none; refuse those of a newer Libra.

    Safe when two do it at once: the second waits for the first under ``lock``.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
        found = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema,)).fetchone()
        if found == (False,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations ("
            "version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        if _version(connection) == 0:
            _apply(connection, MIGRATIONS[:1], 0)
    check_version(connection, label)


def migrate(connection: "psycopg.Connection[Any]", label: str) -> None:
    """Take the steps that are missing, all or none; only who holds the lead may."""
    with connection.transaction():
        check_version(connection, label)
        version = _version(connection)
        _apply(connection, MIGRATIONS[version:], version)


def check_version(connection: "psycopg.Connection[Any]", label: str) -> None:
    """Raise ``StoreError`` for tables that a newer Libra has changed."""
    version, known = _version(connection), len(MIGRATIONS)
    if version > known:
        raise StoreError(
            f"the store {label} has schema {version}, this Libra knows {known}: "
            "it was written by a newer Libra"
        )


def _version(connection: "psycopg.Connection[Any]") -> int:
    row = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
    assert row is not None
    return int(row[0])


def _apply(
    connection: "psycopg.Connection[Any]", steps: Sequence[LiteralString], version: int
) -> None:
    for number, step in enumerate(steps, start=version + 1):
        connection.execute(step)
        connection.execute("INSERT INTO migrations (version) VALUES (%s)", (number,))
