"""A job's real store, seen by one rank: something may happen before each of its calls."""

import datetime
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import TCPStore

from libra.attention.store import Store


def serve() -> Any:
    """Return a TCPStore's server; ranks connect to its port."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connect(port: int) -> Any:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=60))


class WatchedStore:
    """Passes every call on to a store, after ``before(name of the call)``, which may raise."""

    def __init__(self, store: Store, before: Callable[[str], None]) -> None:
        self._store, self._before = store, before

    def check(self, keys: list[str], /) -> bool:
        self._before("check")
        return self._store.check(keys)

    def get(self, key: str, /) -> bytes:
        self._before("get")
        return self._store.get(key)

    def set(self, key: str, value: str, /) -> None:
        self._before("set")
        self._store.set(key, value)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        self._before("compare_set")
        return self._store.compare_set(key, expected, desired)

    def wait(self, keys: list[str], timeout: datetime.timedelta, /) -> None:
        self._before("wait")
        self._store.wait(keys, timeout)

    def delete_key(self, key: str, /) -> bool:
        self._before("delete_key")
        return self._store.delete_key(key)
