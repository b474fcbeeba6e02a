"""A disk that can be kept busy, so that a test can look at what waits for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from libra.balancer.store import Store, StoreError, Write


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
    transact = Store._transact

    def wait(store: Store, writes: list[Write]) -> StoreError | None:
        disk.reached.set()
        disk.free.wait(100)
        return transact(store, writes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_transact", wait)
        yield disk
        disk.free.set()
