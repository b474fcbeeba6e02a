"""The job's own store: what is needed of it, and where the default group keeps it.

Apart, since torch exports neither the type nor the default group's store.
"""

import datetime
from typing import Protocol, cast

from torch.distributed import distributed_c10d, is_initialized


class Store(Protocol):
    """The part of a c10d store that ranks agree through; TCPStore and FileStore have it."""

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...

    def set(self, key: str, value: str, /) -> None: ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...

    def wait(self, keys: list[str], timeout: datetime.timedelta, /) -> None: ...

    def delete_key(self, key: str, /) -> bool: ...


def default_store() -> Store:
    """Return the default process group's store; raise ``RuntimeError`` before there is one."""
    if not is_initialized():
        raise RuntimeError(
            "There is no default process group to take a store from: call "
            "torch.distributed.init_process_group first, or pass a store."
        )
    return distributed_c10d._get_default_store()


def apart(store: Store) -> Store:
    """Return the same store by a connection of its own, where torch can.

    A ``TCPStore`` serves one call at a time: another thread's ``wait`` would hold all others up.
    """
    clone = getattr(store, "clone", None)
    return store if clone is None else cast(Store, clone())
