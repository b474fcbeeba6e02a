"""Counts of values by size, and one example of each size: what Prometheus calls a histogram."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Of seconds: from the reading of a small body to a disk that hangs.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exemplar:
    """One value and where it came from; Prometheus takes at most 128 characters of labels."""

    labels: Mapping[str, str]
    value: float
    at_s: float


class Histogram:
    """Count values by bucket; any one thread may write while another reads.

    Attributes:
        bounds: upper bounds of the buckets, ascending; one more, without a bound, follows.
        counts: values of each bucket alone.
        exemplars: the newest of each bucket; None where none was given.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"bounds={bounds!r}: must ascend, and be at least one")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)
        self.total = 0.0

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        """Count a value; it belongs to the first bucket whose bound it does not exceed."""
        at = bisect_left(self.bounds, value)
        self.counts[at] += 1
        self.total += value
        if exemplar is not None:
            self.exemplars[at] = exemplar

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    @contextmanager
    def time(self) -> Iterator[None]:
        """Count the seconds that a block takes, even one that raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - start)
