"""Moment sums: everything a weighted least-squares fit needs of any number of observations.

One observation is a kernel call: its features x (summed over the call's tiles) and its seconds
y. It is weighted by w = 1 / max(y, floor): a plain fit spoils the small tiles, a relative one
the big. The sums are exact, constant in size and add up across calls, ranks and reports.

Shapes: F = 4 features, in the order of ``libra.attention.cost.FEATURES``.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]

NUM_FEATURES = 4
# count, sum y, sum w y y, then the upper triangle of sum w x x' row by row, then sum w x y.
NUM_SUMS = 3 + NUM_FEATURES * (NUM_FEATURES + 1) // 2 + NUM_FEATURES
# Readings under a microsecond are clock grain, not cost: they must not outweigh real tiles.
SECONDS_FLOOR = 1e-6

# No observations of this house, however many, add up to more; squares stay far from overflow.
_MAX_SUM = 1e60
# Causal pairs a second: the fastest device does a thousandth of it.
_MAX_RATE = 1e15
# Rounding of a sum over many observations, relative to a matrix of unit diagonal.
_ROUNDING = 1e-9

_UPPER = np.triu_indices(NUM_FEATURES)


class Moments:
    """Accumulate observations; ``sums`` is the flat vector that travels in a report."""

    __slots__ = ("sums",)

    def __init__(self, sums: Sequence[float] | None = None) -> None:
        self.sums: Float64 = np.zeros(NUM_SUMS)
        if sums is not None:
            if len(sums) != NUM_SUMS:
                raise ValueError(f"sums has {len(sums)} numbers: must have {NUM_SUMS}")
            self.sums[:] = sums

    def add(self, features: ArrayLike, seconds: ArrayLike) -> None:
        """Add observations: features [n, F] or [F], seconds [n] or a number."""
        x = np.atleast_2d(np.asarray(features, dtype=np.float64))
        y = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
        weighted = x / np.maximum(y, SECONDS_FLOOR)[:, None]
        self.sums[0] += len(y)
        self.sums[1] += y.sum()
        self.sums[2] += (y * y / np.maximum(y, SECONDS_FLOOR)).sum()
        self.sums[3:-NUM_FEATURES] += (weighted.T @ x)[_UPPER]
        self.sums[-NUM_FEATURES:] += weighted.T @ y

    def merge(self, other: Self) -> None:
        """Add another's observations to these."""
        self.sums += other.sums

    def scale(self, factor: float) -> None:
        """Weigh all past observations by ``factor``: forgetting."""
        self.sums *= factor

    def fault(self) -> str | None:
        """Say why no observations can have these sums, None if some can.

        The weighted second moments of (x, y) form a positive semidefinite matrix, or a fit to
        them means nothing.
        """
        if not (self.sums <= _MAX_SUM).all() or (self.sums < 0).any():
            return f"sums must lie in 0..{_MAX_SUM:g}"
        if self.count == 0 and self.sums.any():
            return "there are sums but no observations"
        if (np.diagonal(self.gram) > _MAX_RATE * self.projection).any():
            return f"kernels are said to do more than {_MAX_RATE:g} of a feature a second"
        joint = np.zeros((NUM_FEATURES + 1, NUM_FEATURES + 1))
        joint[:-1, :-1] = self.gram
        joint[-1, :-1] = joint[:-1, -1] = self.projection
        joint[-1, -1] = self.weighted_squares
        scale = np.sqrt(np.diagonal(joint))
        if joint[scale == 0].any():
            return "a feature has products but no squares"
        scale[scale == 0] = 1.0
        if np.linalg.eigvalsh(joint / np.outer(scale, scale))[0] < -_ROUNDING:
            return "the second moments are not positive semidefinite"
        return None

    @property
    def count(self) -> float:
        return float(self.sums[0])

    @property
    def seconds(self) -> float:
        """Sum of y."""
        return float(self.sums[1])

    @property
    def weighted_squares(self) -> float:
        """Sum of w y y."""
        return float(self.sums[2])

    @property
    def gram(self) -> Float64:
        """Sum of w x x', [F, F]."""
        gram = np.zeros((NUM_FEATURES, NUM_FEATURES))
        gram[_UPPER] = self.sums[3:-NUM_FEATURES]
        return gram + np.triu(gram, 1).T

    @property
    def projection(self) -> Float64:
        """Sum of w x y, [F]."""
        return self.sums[-NUM_FEATURES:].copy()
