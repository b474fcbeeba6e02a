"""Keep readings that are no measure of a kernel's cost out of the moments.

A call is held against a small model of its own kind, learned from calls that were let through. It
is set aside when its ratio to the prediction lies far from the median ratio of the newest calls:
a change that all calls share moves the median with them and passes at once. One that only some
tiles feel is set aside at first; where that goes on the guard yields: it learns anew and allows
for more, since its model may be no match for the kernel. The less experience the model has of a
call's features, the further apart the call may lie.

Pure: no clock, numpy and scipy only.

Shapes: F features; n rows of [F] features and seconds, [n, F + 1].
"""

import numpy as np
from numpy.typing import NDArray

from libra.balancer.medians import spread
from libra.balancer.moments import SECONDS_FLOOR, Moments
from libra.balancer.nonnegative import RIDGE, solve_nonnegative

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

# The first calls of a kind set up what later ones find: threads, buffers, compiled code.
WARM_UP_CALLS = 2
# Before so many are there nothing can be judged, and they wait.
MIN_CALLS = 32
# Twice the usual, or half of it, is within what a sound kernel may do to a tile.
FLOOR = float(np.log(2.0))
SPREADS = 6.0
# Yielding doubles the floor's logarithm, and each look that finds few set aside takes this off.
NARROWING = 0.98
# After so many calls it is looked at how many were set aside, as a share of calls or of cost; and
# after so many looks in a row that found too many the guard yields.
REVIEW_CALLS = 64
MAX_SHARE = 0.05
MAX_REVIEWS = 3

# About so many calls are remembered, and the model is solved again when it grew by this factor.
_MAX_COUNT = 2048.0
_GROWTH = 1.25
_FIRST_REACH = 3.0


class Guard:
    """Judge one kind's calls, in order.

    Attributes:
        set_aside: calls refused so far, those of the warm-up included.
    """

    def __init__(self, num_features: int) -> None:
        self.set_aside = 0
        self._warm_up = WARM_UP_CALLS
        self._waiting: Float64 = np.zeros((0, num_features + 1))
        self._ratios: Float64 = np.zeros(0)
        self._model: _Model | None = None
        self._review = _Review()
        self._floor = FLOOR

    def sift(self, rows: Float64) -> Float64:
        """Return those of rows [n, F + 1] to learn from, with earlier ones that had to wait."""
        skipped = min(self._warm_up, len(rows))
        self._warm_up -= skipped
        self.set_aside += skipped
        rows = np.concatenate((self._waiting, rows[skipped:]))
        self._waiting = rows[:0]
        if self._model is None:
            if len(rows) < MIN_CALLS:
                self._waiting = rows
                return rows[:0]
            self._model = _first_model(rows)
            ratios, reach = self._model.ratios(rows)
            self._ratios = ratios[reach <= 1][-MIN_CALLS:]
            kept = _usual(ratios, reach, self._ratios, self._floor)
        else:
            kept = self._judge(self._model, rows)
        self.set_aside += int((~kept).sum())
        return rows[kept]

    def _judge(self, model: "_Model", rows: Float64) -> Bools:
        ratios, reach = model.ratios(rows)
        newest = np.concatenate((self._ratios, ratios[reach <= 1]))
        self._ratios = newest[-max(MIN_CALLS, len(rows)) :]
        kept = _usual(ratios, reach, self._ratios, self._floor)
        model.learn(rows[kept])
        too_many = self._review.add(kept, model.predict(rows))
        if too_many is False:
            self._floor = max(FLOOR, NARROWING * self._floor)
        if self._review.found >= MAX_REVIEWS:
            self._model, self._review = None, _Review()
            self._floor *= 2
        return kept


class _Model:
    """What a kind's calls cost, as far as those let through tell."""

    def __init__(self, rows: Float64) -> None:
        self._moments = Moments(num_features=rows.shape[1] - 1)
        self._solved_count = 0.0
        self.learn(rows)

    def learn(self, rows: Float64) -> None:
        if self._moments.count > _MAX_COUNT:
            self._moments.scale(0.5)
            self._solved_count *= 0.5
        self._moments.add(rows[:, :-1], rows[:, -1])
        if self._moments.count >= _GROWTH * self._solved_count:
            self._solve()

    def predict(self, rows: Float64) -> Float64:
        """Return seconds [n]."""
        return np.asarray(rows[:, :-1] @ self._coefficients)

    def ratios(self, rows: Float64) -> tuple[Float64, Float64]:
        """Return [n] logarithms of measured over predicted, and [n] reaches.

        A reach of 1 is a prediction at least as certain as a reading of its own.
        """
        expected = np.maximum(self.predict(rows), SECONDS_FLOOR)
        ratios = np.log(np.maximum(rows[:, -1], SECONDS_FLOOR) / expected)
        # In variances of one reading.
        uncertainty = ((rows[:, :-1] @ self._whitening) ** 2).sum(axis=1) / expected
        return ratios, np.sqrt(np.maximum(uncertainty, 1.0))

    def _solve(self) -> None:
        gram = self._moments.gram
        self._coefficients = solve_nonnegative(gram, self._moments.projection)
        diagonal = np.diagonal(gram)
        scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        # [F, F]: squares of whitened features add up to how uncertain their prediction is.
        self._whitening = vectors / scale[:, None] / np.sqrt(np.maximum(values, 0.0) + RIDGE)
        self._solved_count = self._moments.count


class _Review:
    """Find out whether calls keep being set aside.

    Attributes:
        found: looks in a row that found too many.
    """

    def __init__(self) -> None:
        self.found = 0
        self._restart()

    def add(self, kept: Bools, expected: Float64) -> bool | None:
        """Count [n] calls of [n] expected seconds.

        Returns:
            Whether too many were set aside; None when it is too soon to look.
        """
        self._calls += np.array([len(kept), int((~kept).sum())])
        self._seconds += np.array([expected.sum(), expected[~kept].sum()])
        if self._calls[0] < REVIEW_CALLS:
            return None
        shares = (own[1] / own[0] for own in (self._calls, self._seconds) if own[0] > 0)
        too_many = bool(max(shares) > MAX_SHARE)
        self.found = self.found + 1 if too_many else 0
        self._restart()
        return too_many

    def _restart(self) -> None:
        self._calls: Float64 = np.zeros(2)
        self._seconds: Float64 = np.zeros(2)


def _usual(ratios: Float64, reach: Float64, newest: Float64, floor: float) -> Bools:
    """Return [n] which ratios lie near the median of ``newest``, as far as they reach."""
    if not len(newest):
        return np.ones(len(ratios), dtype=np.bool_)
    middle = np.median(newest)
    limit = max(floor, SPREADS * spread(newest - middle))
    return np.asarray(np.abs(ratios - middle) <= limit * reach)


def _first_model(rows: Float64) -> _Model:
    """Return a model of the calls of rows [n, F + 1] that agree with each other.

    A reading far too small rules any weighted fit that it is part of, and then most others lie far
    from it: the half of the calls nearest to the median ratio is where to begin. What only one
    call could tell is left to later ones.
    """
    model = _Model(rows)
    ratios, _ = model.ratios(rows)
    apart = np.abs(ratios - np.median(ratios))
    model = _Model(rows[apart <= np.median(apart)])
    for _ in range(3):
        ratios, reach = model.ratios(rows)
        agreeing = _usual(ratios, np.minimum(reach, _FIRST_REACH), ratios[reach <= 1], FLOOR)
        model = _Model(rows[agreeing])
    return model
