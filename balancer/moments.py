"""Moment sums: everything a weighted least-squares fit needs of any number of observations.

One observation is a kernel call: its features x (summed over the call's tiles) and its seconds
y. It is weighted by w = 1 / max(y, floor): a plain fit spoils the small tiles, a relative one
the big. The sums are exact, constant in size and add up across calls, ranks and reports.

Shapes: F = 6 features, in the order of ``libra.attention.cost.FEATURES``; N sums.
"""

from collections.abc import Sequence
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.attention.cost import NUM_FEATURES

Float64 = NDArray[np.float64]


def num_sums(num_features: int) -> int:
    """Return how many sums there are: count, sum y, sum w y y, then the upper triangle of
    sum w x x' row by row, then sum w x y.
    """
    return 3 + num_features * (num_features + 1) // 2 + num_features


NUM_SUMS = num_sums(NUM_FEATURES)


@cache
def _upper(num_features: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the upper triangle's rows and columns, which take longer to find than to use."""
    rows, columns = np.triu_indices(num_features)
    return rows, columns


@cache
def _rounding(num_features: int) -> Float64:
    """Return what a matrix of unit diagonal may lack by rounding, [F + 1, F + 1]."""
    return _ROUNDING * np.eye(num_features + 1)


@cache
def _joint(num_features: int) -> NDArray[np.intp]:
    """Return [F + 1, F + 1]: where in the sums the second moments of (x, y) are."""
    rows, columns = _upper(num_features)
    index = np.zeros((num_features + 1, num_features + 1), dtype=np.intp)
    index[rows, columns] = index[columns, rows] = 3 + np.arange(len(rows))
    index[-1, :-1] = index[:-1, -1] = 3 + len(rows) + np.arange(num_features)
    index[-1, -1] = 2
    return index


# Readings under a microsecond are clock grain, not cost: they must not outweigh real tiles.
SECONDS_FLOOR = 1e-6

# No observations of this house, however many, add up to more; squares stay far from overflow.
_MAX_SUM = 1e60
# Causal pairs a second: the fastest device does a thousandth of it.
_MAX_RATE = 1e15
# Rounding of a sum over many observations, relative to a matrix of unit diagonal.
_ROUNDING = 1e-9


class Moments:
    """Accumulate observations; ``sums`` is the flat vector that travels in a report."""

    __slots__ = ("num_features", "sums")

    def __init__(
        self, sums: Sequence[float] | None = None, *, num_features: int = NUM_FEATURES
    ) -> None:
        self.num_features = num_features
        self.sums: Float64 = np.zeros(num_sums(num_features))
        if sums is not None:
            if len(sums) != len(self.sums):
                raise ValueError(f"sums has {len(sums)} numbers: must have {len(self.sums)}")
            self.sums[:] = sums

    def add(
        self, features: ArrayLike, seconds: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add observations: features [n, F] or [F], seconds [n] or a number.

        Weights, [n] or a number, take the place of 1 / seconds; what weighs nothing is not there.
        """
        x = np.atleast_2d(np.asarray(features, dtype=np.float64))
        y = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
        w = 1.0 / np.maximum(y, SECONDS_FLOOR) if weights is None else np.atleast_1d(weights)
        weighted = x * w[:, None]
        self.sums[0] += np.count_nonzero(w)
        self.sums[1] += y[w > 0].sum()
        self.sums[2] += (w * y * y).sum()
        self.sums[3 : -self.num_features] += (weighted.T @ x)[_upper(self.num_features)]
        self.sums[-self.num_features :] += weighted.T @ y

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
        joint = np.zeros((self.num_features + 1, self.num_features + 1))
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
        gram = np.zeros((self.num_features, self.num_features))
        gram[_upper(self.num_features)] = self.sums[3 : -self.num_features]
        return gram + np.triu(gram, 1).T

    @property
    def projection(self) -> Float64:
        """Sum of w x y, [F]."""
        return self.sums[-self.num_features :].copy()


def are_plausible(sums: Float64, num_features: int = NUM_FEATURES) -> bool:
    """Can observations have all of these sums [n, N]? True means that each is without ``fault``;
    False, that one may have one.
    """
    if not (sums.min() >= 0 and sums.max() <= _MAX_SUM and sums[:, 0].all()):
        return False
    joint = sums[:, _joint(num_features)]
    diagonals = np.diagonal(joint, axis1=1, axis2=2)
    if (diagonals[:, :-1] > _MAX_RATE * sums[:, -num_features:]).any():
        return False
    # A feature without squares must have no products; its part of the matrix is nothing then.
    if not diagonals.all():
        unseen = diagonals == 0
        if joint[unseen].any():
            return False
        diagonals = np.where(unseen, 1.0, diagonals)
    scale = np.sqrt(diagonals)
    joint /= scale[:, :, None] * scale[:, None, :]
    joint += _rounding(num_features)
    try:
        np.linalg.cholesky(joint)
    except np.linalg.LinAlgError:
        return False
    return True


def at_pace(sums: Float64, paces: Float64 | float, num_features: int = NUM_FEATURES) -> Float64:
    """Return sums [..., N] of the same calls, had they taken 1 / ``paces`` [...] of their seconds.

    A rank's *pace* is its seconds over the typical rank's, so the inverse of its speed.
    """
    factors = np.asarray(paces)[..., None]
    scaled = sums.copy()
    scaled[..., 1:3] /= factors
    scaled[..., 3:-num_features] *= factors
    return scaled
