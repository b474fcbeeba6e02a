"""Lengths known only as a histogram: weights of ranges, or of single lengths.

Shapes: K bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.ranges import Range

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

# No document is as long; sums of lengths stay far within int64.
LONGEST = 1 << 40


@dataclass(frozen=True)
class Histogram:
    """How many lengths lie in each range.

    Attributes:
        low, high: [K] first and last length of each bin.
        weights: [K] how often its lengths come, in any unit.
    """

    low: Float64
    high: Float64
    weights: Float64

    def __post_init__(self) -> None:
        if not np.isfinite(self.weights).all() or self.weights.min() < 0 or not self.weights.any():
            raise ValueError(f"counts {self.weights.tolist()} are not of lengths")
        empty = self.high < np.maximum(self.low, 1)
        bad = np.flatnonzero((empty | ~(self.high <= LONGEST)) & (self.weights > 0))
        if len(bad):
            first = int(bad[0])
            what = "holds no length" if empty[first] else f"goes beyond {LONGEST}"
            raise ValueError(f"range [{self.low[first]:.15g}, {self.high[first]:.15g}] {what}")

    def __call__(self, rng: np.random.Generator, count: int) -> Int64:
        """Return [count] lengths; a histogram is a family of lengths."""
        low, high = np.maximum(self.low, 1.0), self.high + 1.0
        own = rng.choice(len(self.weights), count, p=self.weights / self.weights.sum())
        # Log-uniform within a bin: lengths thin out as they grow.
        drawn = np.exp(rng.uniform(np.log(low[own]), np.log(high[own]))).astype(np.int64)
        # Rounding may fall below a bin's first length.
        return np.clip(drawn, np.ceil(low[own]).astype(np.int64), self.high[own].astype(np.int64))


def histogram_of(bins: Sequence[Range], weights: Sequence[float]) -> Histogram:
    """Return the histogram of K ranges, in any order.

    Raises:
        ValueError: two overlap by more than an end, one holds no length, or the weights are none.
    """
    low, high = np.array(bins, dtype=np.float64).reshape(-1, 2).T
    order = np.lexsort((high, low))
    over = np.flatnonzero(high[order][:-1] > low[order][1:])
    if len(over):
        first, second = (bins[index] for index in order[over[0] : over[0] + 2])
        raise ValueError(
            f"ranges [{first.low:.15g}, {first.high:.15g}] and [{second.low:.15g}, "
            f"{second.high:.15g}] overlap; a length must be in one bin only"
        )
    return Histogram(low=low, high=high, weights=np.array(weights, dtype=np.float64))
