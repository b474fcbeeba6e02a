"""The balancer's memory in PostgreSQL: several balancers may open it, one leads and writes.

Who leads holds an advisory lock for as long as its session lives, and a generation number.
Every transaction first checks the number, and so moves the end of the lease: a balancer that
lost its session can write nothing once another has taken over, however late its bytes arrive.
"""

import logging
import os
import random
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

import psycopg

from libra.balancer import postgres_lead as lead
from libra.balancer import postgres_rows as rows
from libra.balancer.lease import MARGIN, MAX_LEAD_TIMEOUT_S, Lease
from libra.balancer.postgres_schema import check_version, migrate, prepare
from libra.balancer.postgres_session import Session, check_address
from libra.balancer.storage import LostLeadError, StoredJob, StoredSummary, StoreError, Write

logger = logging.getLogger(__name__)

_WRITE_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_BACKOFF_S = (0.1, 1.0)

_Connection = psycopg.Connection[Any]


def boot_s() -> float:
    """Return seconds of a clock that goes on while this process, or the machine, is asleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LockTakenError(StoreError):
    """Another session holds the lock, and nobody has led with it yet."""


class PostgresBackend:
    """A ``Backend`` in a schema of its own, made when it is first used.

    Raises ``StoreError`` when the server cannot be reached or its tables are a newer Libra's.

    Attributes:
        label: hosts and database, no user and no password.
        lease: how long this balancer may answer as the one that leads; None while it does not.
            Replaced as a whole, so that another thread may read it.
    """

    def __init__(self, address: str, *, schema: str = "libra", lead_timeout_s: float = 5.0) -> None:
        self.label = check_address(address)
        self.lease: Lease | None = None
        self._address = address
        self._schema = schema
        self._lead_timeout_s = lead_timeout_s
        self._lease_s = lead_timeout_s * MARGIN
        self._session: Session | None = None
        self._old_process: tuple[int, Any] | None = None
        self._failures = 0
        self._connect_after_s = 0.0
        self._lock, schema_lock = lead.lock_numbers(schema)
        try:
            with self._asking("open", _WRITE_TIMEOUT_S) as connection:
                prepare(connection, schema, self.label, schema_lock)
                _warn_of_loss(connection, self.label)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def now_s() -> float:
        """Return the time that ``lease`` is told in."""
        return boot_s()

    def try_lead(self) -> bool:
        """Become the one balancer that may write; False while another one is.

        Raises ``LostLeadError`` once when this one led and another has done so since: what is in
        memory is then out of date.
        """
        if self.lease is not None:
            with suppress(LockTakenError):
                self.transact([])
                return True
            return False
        with self._asking("lead", _WRITE_TIMEOUT_S) as connection:
            check_version(connection, self.label)
            if not self._locked(connection):
                lead.end_silent(connection, self._lock, self._lease_s)
                return False
            try:
                migrate(connection, self.label)
                self.lease = self._take(connection)
            except BaseException:
                self._drop_session()  # and the lock: another balancer may fare better
                raise
        return True

    def load(self, job: str, *, last_steps: int) -> StoredJob | None:
        """Return a job with its newest steps, or None."""
        with self._asking("read", _READ_TIMEOUT_S) as connection:
            return rows.load(connection, job, last_steps)

    def summaries(self) -> list[StoredSummary]:
        """Return what is known of every job without reading it."""
        with self._asking("read", _READ_TIMEOUT_S) as connection:
            return rows.summaries(connection)

    def transact(self, writes: Sequence[Write]) -> None:
        """Write all or nothing, durable on return; without writes, only hold the lead.

        Raises ``LostLeadError`` if another balancer leads. After a lost connection this one leads
        on if nobody else did meanwhile.
        """
        with self._writing(_WRITE_TIMEOUT_S) as connection, connection.transaction():
            self._hold(connection)
            with connection.pipeline():
                for write in writes:
                    rows.put(connection, write)

    def prune(self, *, before_s: float, max_bytes: int, keep: Collection[str]) -> list[str]:
        """Drop what is too old or too much, a bounded piece at a time: call it again."""
        with self._writing(_READ_TIMEOUT_S) as connection, connection.transaction():
            self._hold(connection)
            dropped = rows.drop_finished(connection, before_s, list(keep))
            rows.drop_steps(connection, max_bytes)
            return dropped

    def size_bytes(self) -> int:
        """Return the bytes of all jobs and steps; the server may take more on disk."""
        with self._asking("read", _READ_TIMEOUT_S) as connection:
            return rows.size_bytes(connection)

    def close(self) -> None:
        """Give the lead back, so that another need not wait for the lease to end."""
        if self._session is None:
            return
        if self.lease is not None and self._session.locked:
            with suppress(psycopg.Error), self._session.within(1.0) as connection:
                lead.release(connection, self.lease.generation, self._lock)
        self.lease = None
        self._session.close()
        self._session = None

    @contextmanager
    def _writing(self, timeout_s: float) -> Iterator[_Connection]:
        """Give a connection whose session leads; take the lead up again after a lost one."""
        if self.lease is None:
            raise LostLeadError(f"this balancer does not lead: nothing is written to {self.label}")
        with self._asking("write", timeout_s) as connection:
            self._resume(connection)
            # Before anything is sent: the lease in the database begins later than this.
            ends_s = boot_s() + self._lead_timeout_s
            yield connection
            self.lease = replace(self.lease, ends_s=max(ends_s, self.lease.ends_s))

    def _resume(self, connection: _Connection) -> None:
        assert self._session is not None
        assert self.lease is not None
        if self._session.locked:
            return
        # Only with the lock is the old session gone for certain, and what it was sent with it:
        # else an old write that arrives late could take the place of a newer one.
        if not self._locked(connection):
            if lead.current(connection) != self.lease.generation:
                self._lose()
            raise LockTakenError(f"cannot write the store {self.label}: another session leads")
        generation = lead.resume(connection, self.lease.generation, self._lease_s)
        if generation is None:
            self._lose()
        self.lease = replace(self.lease, generation=generation)
        logger.info("Leads on in the store %s after a lost connection.", self.label)

    def _hold(self, connection: _Connection) -> None:
        assert self.lease is not None
        if not lead.hold(connection, self.lease.generation, self._lease_s):
            self._lose()

    def _take(self, connection: _Connection) -> Lease:
        sent_s = boot_s()
        holder = f"{socket.gethostname()}:{os.getpid()}"
        generation, wait_s = lead.take(connection, holder, self._lease_s)
        # The bound is for a server whose clock was set back.
        begins_s = boot_s() + min(wait_s, MAX_LEAD_TIMEOUT_S * MARGIN)
        ends_s = sent_s + self._lead_timeout_s
        return Lease(generation=generation, begins_s=begins_s, ends_s=ends_s)

    def _locked(self, connection: _Connection) -> bool:
        assert self._session is not None
        if not self._session.locked:
            self._session.locked = lead.try_lock(connection, self._lock)
        return self._session.locked

    def _lose(self) -> NoReturn:
        self.lease = None
        raise LostLeadError(f"another balancer has taken over the store {self.label}")

    @contextmanager
    def _asking(self, what: str, timeout_s: float) -> Iterator[_Connection]:
        try:
            with self._connected().within(timeout_s) as connection:
                yield connection
        except LostLeadError:
            self._drop_session()
            raise
        except psycopg.Error as error:
            if self._session is not None and self._session.connection.closed:
                self._drop_session()
            reason = str(error).strip().partition("\n")[0]
            raise StoreError(f"cannot {what} the store {self.label}: {reason}") from error

    def _connected(self) -> Session:
        if self._session is not None:
            return self._session
        if boot_s() < self._connect_after_s:
            raise StoreError(f"the store {self.label} cannot be reached; it is tried again soon")
        try:
            session = Session(
                self._address, schema=self._schema, lead_timeout_s=self._lead_timeout_s
            )
        except psycopg.Error:
            longest_s = min(_BACKOFF_S[1], _BACKOFF_S[0] * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            self._connect_after_s = boot_s() + longest_s * random.uniform(0.5, 1.0)
            raise
        self._failures = 0
        self._session = session
        if self._old_process is not None:
            with session.within(_WRITE_TIMEOUT_S) as connection:
                lead.end_session(connection, self._old_process, timeout_s=1.0)
            self._old_process = None
        return session

    def _drop_session(self) -> None:
        if self._session is None:
            return
        if self._session.locked:
            self._old_process = self._session.process
        self._session.close()
        self._session = None


def _warn_of_loss(connection: _Connection, label: str) -> None:
    row = connection.execute("SELECT current_setting('fsync')").fetchone()
    if row == ("off",):
        logger.warning(
            "The server of the store %s runs with fsync = off: if its machine fails, policies that "
            "were acknowledged may be lost.",
            label,
        )
