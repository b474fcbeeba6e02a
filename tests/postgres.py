"""A real PostgreSQL server of the tests' own, and a network before it that can be cut."""

import contextlib
import glob
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

PASSWORD = "s3cret-of-the-tests"
_DEADLINE_S = 60.0
_OPTIONS = (
    *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=60"),
    *("-c", "shared_buffers=16MB", "-c", "autovacuum=off"),
)


def find_programs() -> Path:
    """Return the folder of ``initdb`` and ``postgres``; skip the test where there is none."""
    # Debian keeps them off the path, by version.
    folders = [Path(found) for found in glob.glob("/usr/lib/postgresql/*/bin")]
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    found = [folder for folder in folders if (folder / "postgres").exists()]
    if found:
        return max(found, key=lambda folder: [int(n) for n in str(folder) if n.isdigit()])
    if os.environ.get("CI"):
        pytest.fail("no PostgreSQL server: tests/install-system-packages brings it")
    pytest.skip("no PostgreSQL server is installed")


class PostgresServer:
    """A server on a loopback port and a Unix socket; every database that is asked for is new."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.folder = folder
        self.port = _free_port()
        self._programs = find_programs()
        self._durable = durable
        # It refuses to run as root.
        self._user = _unprivileged() if os.geteuid() == 0 else None
        password = folder / "password"
        password.write_text(PASSWORD)
        if self._user is not None:
            os.chown(folder, self._user, -1)
            os.chown(password, self._user, -1)
        program = str(self._programs / "initdb")
        access = ("--auth-host=scram-sha-256", "--auth-local=trust", f"--pwfile={password}")
        subprocess.run(
            [program, "-D", str(folder / "data"), "-U", "libra", "--no-sync", *access],
            check=True,
            capture_output=True,
            user=self._user,
            cwd=folder,
            timeout=_DEADLINE_S,
        )
        self.start()

    def start(self) -> None:
        """Start the server; return when it answers."""
        log = (self.folder / "log").open("ab")
        fsync = "on" if self._durable else "off"
        program = str(self._programs / "postgres")
        places = ("-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder))
        with log:
            self._process = subprocess.Popen(
                [program, *places, "-c", f"fsync={fsync}", *_OPTIONS],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
            )
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                psycopg.connect(self.address("postgres")).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop at once, as after a power cut; SIGINT ends sessions first."""
        self._process.send_signal(how)
        self._process.wait(_DEADLINE_S)

    def address(self, database: str, *, port: int | None = None) -> str:
        return f"postgresql://libra:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database; return its name."""
        name = f"d{secrets.token_hex(4)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name

    def end_sessions(self, database: str) -> None:
        """End every session with the database, as an administrator may."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (database,),
            )


@contextlib.contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Start a server in a folder that is gone at the end."""
    # Not pytest's own folder: only the user who runs the tests may look into that.
    folder = Path(tempfile.mkdtemp(prefix="libra-pg-"))
    try:
        server = PostgresServer(folder, durable=durable)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> int:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    pytest.skip("no user that PostgreSQL could run as")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
