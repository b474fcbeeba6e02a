"""One connection to PostgreSQL on which every wait has a deadline, on both sides.

The server ends a session that has been silent for ``lead_timeout_s``, so that a balancer that
hangs, or is cut off, does not keep its lock. This side closes the socket under a call that
takes too long: a peer that accepts bytes and never answers is noticed by no keepalive.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from libra.balancer.storage import StoreError

_OLDEST = 14  # the first that ends sessions which are silent
_STATEMENT_TIMEOUT_S = 60.0
_LOCK_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5.0
_SETTINGS = """
SELECT set_config('search_path', %(schema)s, false),
    set_config('statement_timeout', %(statement_ms)s, false),
    set_config('lock_timeout', %(lock_ms)s, false),
    set_config('idle_session_timeout', %(lead_ms)s, false),
    set_config('idle_in_transaction_session_timeout', %(lead_ms)s, false),
    set_config('tcp_user_timeout', %(lead_ms)s, false),
    set_config('synchronous_commit',
        CASE current_setting('synchronous_commit')
            WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""


class Session:
    """Connect, or raise ``psycopg.Error``; the lock of the lead is this session's own.

    Attributes:
        locked: does it hold the lead's lock?
        process: (number, start) by which the server tells its end of this session.
    """

    def __init__(self, address: str, *, schema: str, lead_timeout_s: float) -> None:
        self.connection = psycopg.connect(_with_deadlines(address, lead_timeout_s), autocommit=True)
        self._socket = socket.socket(fileno=os.dup(self.connection.fileno()))
        self.locked = False
        try:
            with self.within(_CONNECT_TIMEOUT_S) as connection:
                self.process = _set_up(connection, schema, lead_timeout_s)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def within(self, timeout_s: float) -> "Iterator[psycopg.Connection[Any]]":
        """Give the connection to the block; what it waits for fails once the time is over."""
        timer = threading.Timer(timeout_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield self.connection
        finally:
            timer.cancel()
            timer.join()

    def close(self) -> None:
        self.connection.close()
        self._socket.close()

    def _cut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def check_address(address: str) -> str:
    """Return what people are told of an address: hosts and database; raise ``StoreError``."""
    try:
        parts = conninfo_to_dict(address)
    except psycopg.Error:
        # The parser's own words quote what it did not understand, which may be the password.
        raise StoreError(
            "cannot open the store: it must be like postgresql://user@host:5432/database, "
            "with special characters in the password percent-encoded"
        ) from None
    host = str(parts.get("host") or parts.get("hostaddr") or "")
    database = parts.get("dbname") or parts.get("user") or ""
    if not host or host.startswith("/"):
        return f"postgresql:///{database}" + (f"?host={host}" if host else "")
    hosts = [f"[{name}]" if ":" in name else name for name in host.split(",")]
    ports = [port or "5432" for port in str(parts.get("port") or "").split(",")]
    # One port is that of all hosts.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(f"{name}:{port}" for name, port in zip(hosts, ports, strict=False))
    return f"postgresql://{where}/{database}"


def _with_deadlines(address: str, lead_timeout_s: float) -> str:
    # What the address itself says goes first.
    defaults: dict[str, Any] = {
        "application_name": "libra",
        "client_encoding": "UTF8",
        "connect_timeout": round(_CONNECT_TIMEOUT_S),
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": round(lead_timeout_s * 1000),
        # Of several hosts, the one that is no replica.
        "target_session_attrs": "read-write",
    }
    return make_conninfo("", **(defaults | conninfo_to_dict(address)))


def _set_up(
    connection: "psycopg.Connection[Any]", schema: str, lead_timeout_s: float
) -> tuple[int, Any]:
    major = connection.info.server_version // 10_000
    if major < _OLDEST:
        raise StoreError(f"the store is PostgreSQL {major}: Libra needs {_OLDEST} or newer")
    values = {
        "schema": schema,
        "statement_ms": f"{_STATEMENT_TIMEOUT_S * 1000:.0f}",
        "lock_ms": f"{_LOCK_TIMEOUT_S * 1000:.0f}",
        "lead_ms": f"{lead_timeout_s * 1000:.0f}",
    }
    connection.execute(_SETTINGS, values)
    row = connection.execute(
        "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return row[0], row[1]
