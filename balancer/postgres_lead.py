"""Who leads, as rows and locks of a PostgreSQL store: what is asked, and nothing else."""

import contextlib
import hashlib
from typing import Any

import psycopg

_Connection = psycopg.Connection[Any]

_LEASE_OF_OTHERS = """
SELECT extract(epoch FROM greatest(expires_at, clock_timestamp()) - clock_timestamp())
FROM lead FOR UPDATE
"""
_TAKE = """
UPDATE lead SET generation = generation + 1, holder = %(holder)s,
    expires_at = greatest(expires_at, clock_timestamp() + %(lease_s)s * interval '1 second')
RETURNING generation
"""
_RESUME = """
UPDATE lead SET generation = generation + 1,
    expires_at = clock_timestamp() + %(lease_s)s * interval '1 second'
WHERE generation = %(generation)s RETURNING generation
"""
_HOLD = """
UPDATE lead SET expires_at = clock_timestamp() + %(lease_s)s * interval '1 second'
WHERE generation = %(generation)s
"""
_END = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s
"""
# A number of 64 bits stands in the list of locks as two of 32.
_END_SILENT = """
SELECT pg_terminate_backend(pid) FROM lead, pg_locks JOIN pg_stat_activity USING (pid)
WHERE expires_at < clock_timestamp()
    AND state_change < clock_timestamp() - %(lease_s)s * interval '1 second'
    AND locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = %(high)s::bigint::oid AND objid = %(low)s::bigint::oid
"""


def lock_numbers(schema: str) -> tuple[int, int]:
    """Return the advisory locks of a schema: of the lead, and of making its tables."""
    digest = hashlib.blake2b(f"libra {schema}".encode(), digest_size=16).digest()
    return (
        int.from_bytes(digest[:8], "big", signed=True),
        int.from_bytes(digest[8:], "big", signed=True),
    )


def try_lock(connection: _Connection, lock: int) -> bool:
    """Take the lock for as long as the session lives, unless another session has it."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock,)).fetchone()
    return row == (True,)


def take(connection: _Connection, holder: str, lease_s: float) -> tuple[int, float]:
    """Begin a new generation; return it and the seconds that the lease before still runs."""
    with connection.transaction():
        before = connection.execute(_LEASE_OF_OTHERS).fetchone()
        row = connection.execute(_TAKE, {"holder": holder, "lease_s": lease_s}).fetchone()
    assert before is not None
    assert row is not None
    return int(row[0]), float(before[0])


def resume(connection: _Connection, generation: int, lease_s: float) -> int | None:
    """Follow this generation with a new one; None if another balancer has led since."""
    values = {"generation": generation, "lease_s": lease_s}
    row = connection.execute(_RESUME, values).fetchone()
    return None if row is None else int(row[0])


def hold(connection: _Connection, generation: int, lease_s: float) -> bool:
    """Move the end of the lease; False if another balancer has led since."""
    values = {"generation": generation, "lease_s": lease_s}
    return connection.execute(_HOLD, values).rowcount == 1


def current(connection: _Connection) -> int:
    row = connection.execute("SELECT generation FROM lead").fetchone()
    assert row is not None
    return int(row[0])


def release(connection: _Connection, generation: int, lock: int) -> None:
    """End the lease and give the lock back: who comes next need not wait for either."""
    connection.execute(
        "UPDATE lead SET expires_at = '-infinity' WHERE generation = %s", (generation,)
    )
    connection.execute("SELECT pg_advisory_unlock(%s)", (lock,))


def end_session(connection: _Connection, process: tuple[int, Any], timeout_s: float) -> None:
    """End an earlier session of this balancer that the server may still believe in."""
    connection.execute(_END, (round(timeout_s * 1000), *process))


def end_silent(connection: _Connection, lock: int, lease_s: float) -> None:
    """End the session that holds the lead's lock, if its lease is over and it says nothing.

    A process that stops in the middle of a message leaves a session that no timeout of the server
    ends. It leads no more, so nothing is taken from it.
    """
    values = {"lease_s": lease_s, "high": (lock >> 32) & 0xFFFFFFFF, "low": lock & 0xFFFFFFFF}
    with contextlib.suppress(psycopg.errors.UndefinedTable):  # they are being made
        connection.execute(_END_SILENT, values)
