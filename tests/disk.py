"""A disk that can be kept busy, so that a test can look at what waits for it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.storage import StoreError, Write


@dataclass(frozen=True)
class Disk:
    """A transaction of any store tells that it has ``reached`` it, and waits until ``free``."""

    reached: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def keep_busy(self) -> None:
        """Hold the transactions to come."""
        self.reached.clear()
        self.free.clear()


@contextmanager
def slowed_disk() -> Iterator[Disk]:
    """Put a disk, free at first, under every store; it is free again at the end."""
    disk = Disk()
    disk.free.set()
    transact = SqliteBackend.transact

    def wait(backend: SqliteBackend, writes: Sequence[Write]) -> None:
        disk.reached.set()
        disk.free.wait(100)
        transact(backend, writes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteBackend, "transact", wait)
        yield disk
        disk.free.set()


@contextmanager
def failing_disk(error: str = "database or disk is full") -> Iterator[Disk]:
    """Let every transaction of any store fail, as a full disk would; it tells that it was tried."""
    disk = Disk()

    def fail(backend: SqliteBackend, writes: Sequence[Write]) -> None:
        disk.reached.set()
        raise StoreError(f"cannot write the store {backend.path}: {error}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteBackend, "transact", fail)
        yield disk
