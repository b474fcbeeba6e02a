"""What several readers and writers saw, when, and whether one sequence of policies explains it."""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A policy version that an answer held; times are one monotonic clock's."""

    begin_s: float
    end_s: float
    version: int
    where: str
    published: bool = False


class History:
    """Record operations from any thread; ``check`` them at the end."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._lock = threading.Lock()

    def record(self, where: str, ask: Callable[[], int | None], *, published: bool = False) -> None:
        """Run an operation; keep the version that it answers, nothing if it fails."""
        begin_s = time.monotonic()
        version = ask()
        if version is not None:
            seen = Seen(
                begin_s=begin_s,
                end_s=time.monotonic(),
                version=version,
                where=where,
                published=published,
            )
            with self._lock:
                self._seen.append(seen)

    @property
    def published(self) -> list[int]:
        return [seen.version for seen in self._seen if seen.published]

    @property
    def places(self) -> set[str]:
        return {seen.where for seen in self._seen}

    def check(self) -> None:
        """No operation that began after another had ended may answer an older version."""
        ended = sorted(self._seen, key=lambda seen: seen.end_s)
        ends_s = [seen.end_s for seen in ended]
        newest = list(accumulate((seen.version for seen in ended), max))
        for seen in self._seen:
            before = bisect_left(ends_s, seen.begin_s)
            assert not before or seen.version >= newest[before - 1], (seen, newest[before - 1])
        assert len(self.published) == len(set(self.published)), "a version was published twice"
