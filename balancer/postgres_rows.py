"""Jobs and steps as rows of a PostgreSQL store; the connection's search path is its schema."""

from typing import Any

import psycopg

from libra.balancer.storage import DropJob, PutJob, PutStep, StoredJob, StoredSummary, Write

_Connection = psycopg.Connection[Any]

_PUT_JOB = """
INSERT INTO jobs (job, at_s, finished, summary, core) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (job) DO UPDATE SET at_s = EXCLUDED.at_s, finished = EXCLUDED.finished,
    summary = EXCLUDED.summary, core = EXCLUDED.core
"""
# A step that is written again keeps its place in the order. The running sum stands beside: to add
# up a million rows for each look would take seconds.
_PUT_STEP = """
WITH old AS (
    SELECT octet_length(body) AS num_bytes FROM steps
    WHERE job = %(job)s AND attempt = %(attempt)s AND step = %(step)s),
put AS (
    INSERT INTO steps (job, attempt, step, at_s, body)
    VALUES (%(job)s, %(attempt)s, %(step)s, %(at_s)s, %(body)s)
    ON CONFLICT (job, attempt, step) DO UPDATE SET at_s = EXCLUDED.at_s, body = EXCLUDED.body)
INSERT INTO step_bytes (job, num_bytes)
VALUES (%(job)s, %(num_bytes)s - coalesce((SELECT num_bytes FROM old), 0))
ON CONFLICT (job) DO UPDATE SET num_bytes = step_bytes.num_bytes + EXCLUDED.num_bytes
"""
_LOAD_STEPS = """
SELECT body FROM (SELECT id, body FROM steps WHERE job = %s ORDER BY id DESC LIMIT %s) AS newest
ORDER BY id
"""
_SUMMARIES = """
SELECT job, at_s, finished, summary,
    octet_length(core) + octet_length(summary) + coalesce(num_bytes, 0)
FROM jobs LEFT JOIN step_bytes USING (job) ORDER BY job
"""
_SIZE = """
SELECT (SELECT coalesce(sum(octet_length(core) + octet_length(summary)), 0) FROM jobs)
    + (SELECT coalesce(sum(num_bytes), 0) FROM step_bytes)
"""
_OLD = """
SELECT job FROM jobs WHERE finished AND at_s < %s AND NOT job = ANY(%s) ORDER BY at_s LIMIT %s
"""
# The oldest steps first, until the sum of what went reaches the excess.
_DROP_STEPS = """
WITH oldest AS (
    SELECT id, sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS before
    FROM (SELECT id, body FROM steps ORDER BY id LIMIT %(limit)s) AS first),
gone AS (
    DELETE FROM steps USING oldest WHERE steps.id = oldest.id AND oldest.before < %(excess)s
    RETURNING steps.job, octet_length(body) AS num_bytes),
gone_of AS (SELECT job, sum(num_bytes) AS num_bytes FROM gone GROUP BY job),
kept AS (
    UPDATE step_bytes SET num_bytes = step_bytes.num_bytes - gone_of.num_bytes
    FROM gone_of WHERE step_bytes.job = gone_of.job)
SELECT coalesce(sum(num_bytes), 0) FROM gone_of
"""
# Rows dropped by one statement, and statements, or jobs, of one call: no write waits long for them.
_DROPPED_ROWS, _DROPPING_ROUNDS = 1000, 20


def put(connection: _Connection, write: Write) -> None:
    """Send one write; in a pipeline it is not waited for."""
    match write:
        case PutJob():
            row = (write.job, write.at_s, write.finished, write.summary, write.core)
            connection.execute(_PUT_JOB, row)
        case PutStep():
            values = {
                "job": write.job,
                "attempt": write.attempt,
                "step": write.step,
                "at_s": write.at_s,
                "body": write.body,
                "num_bytes": len(write.body),
            }
            connection.execute(_PUT_STEP, values)
        case DropJob():
            drop(connection, [write.job])


def load(connection: _Connection, job: str, last_steps: int) -> StoredJob | None:
    """Return a job with its newest steps, oldest first."""
    row = connection.execute("SELECT at_s, core FROM jobs WHERE job = %s", (job,)).fetchone()
    if row is None:
        return None
    steps = connection.execute(_LOAD_STEPS, (job, last_steps)).fetchall()
    return StoredJob(job=job, at_s=row[0], core=row[1], steps=[body for (body,) in steps])


def summaries(connection: _Connection) -> list[StoredSummary]:
    return [
        StoredSummary(job=job, at_s=at_s, finished=finished, summary=summary, num_bytes=num_bytes)
        for job, at_s, finished, summary, num_bytes in connection.execute(_SUMMARIES)
    ]


def size_bytes(connection: _Connection) -> int:
    row = connection.execute(_SIZE).fetchone()
    assert row is not None
    return int(row[0])


def drop_finished(connection: _Connection, before_s: float, keep: list[str]) -> list[str]:
    """Drop some finished jobs that were written before a time; return their names."""
    old = connection.execute(_OLD, (before_s, keep, _DROPPING_ROUNDS))
    gone = [job for (job,) in old]
    drop(connection, gone)
    return gone


def drop(connection: _Connection, jobs: list[str]) -> None:
    """Forget jobs and their steps."""
    connection.execute("DELETE FROM jobs WHERE job = ANY(%s)", (jobs,))
    connection.execute("DELETE FROM steps WHERE job = ANY(%s)", (jobs,))
    connection.execute("DELETE FROM step_bytes WHERE job = ANY(%s)", (jobs,))


def drop_steps(connection: _Connection, max_bytes: int) -> None:
    """Drop the oldest steps of any job, some at a time, until all fit; cores stay."""
    excess = size_bytes(connection) - max_bytes
    for _ in range(_DROPPING_ROUNDS):
        if excess <= 0:
            return
        values = {"excess": excess, "limit": _DROPPED_ROWS}
        row = connection.execute(_DROP_STEPS, values).fetchone()
        assert row is not None
        if row[0] == 0:
            return
        excess -= int(row[0])
