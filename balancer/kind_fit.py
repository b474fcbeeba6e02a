"""One kernel kind's cost model, and everything it is made from and judged by.

Shapes: W ranks, n of them; F = 6 features; N sums; m raw points.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.cost_model import CostModel
from libra.balancer.course import Course
from libra.balancer.drift import Cusum
from libra.balancer.medians import lower_median
from libra.balancer.moments import Moments
from libra.balancer.rank_moments import RankMoments, scatters_at_own_pace

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Int64 = NDArray[np.int64]

MAX_POINTS = 256
# The error averages over about this many points, some five reports: a busy start is soon past.
_ERROR_POINTS = 150
# A rank's scatter is the median over so many reports: one hiccup is no lie.
_SCATTER_REPORTS = 5
# Smaller changes of a kind's cost, and of its scatter, are left to forgetting.
_LEVEL_FLOOR, _SHAPE_FLOOR = 0.01, 0.15
_TINY = 1e-12


class KindFit(msgspec.Struct, eq=False, kw_only=True):
    """One kind's model and its evidence.

    Attributes:
        model: the typical rank's, as of the last ``settle``.
        ranks: the evidence, rank by rank.
        paces: [W], seconds of each rank over the model's.
        scatters: [W, 5], scatter of the calls of each rank's newest reports; NaN before.
        points: [m, F + 1], the newest ones.
        seconds: of its newest calls, under fast forgetting: is it used now?
        missed_seconds, judged_seconds: the error is their quotient.
        course: of the error.
        level, shape: tests for a change of all its costs, and of some.
        fresh: reports since the last ``settle``.
    """

    kind: KernelKind
    model: CostModel
    ranks: RankMoments
    paces: Float64
    scatters: Float64
    seconds: float = 0.0
    points: Float64 = msgspec.field(default_factory=lambda: np.zeros((0, NUM_FEATURES + 1)))
    missed_seconds: float = 0.0
    judged_seconds: float = 0.0
    course: Course = msgspec.field(default_factory=Course)
    level: Cusum = msgspec.field(default_factory=lambda: Cusum(floor=_LEVEL_FLOOR))
    shape: Cusum = msgspec.field(default_factory=lambda: Cusum(floor=_SHAPE_FLOOR))
    fresh: int = 0

    @classmethod
    def empty(cls, kind: KernelKind, model: CostModel, world_size: int) -> "KindFit":
        fit = cls(
            kind=kind,
            model=model,
            ranks=RankMoments.empty(world_size),
            paces=np.ones(world_size),
            scatters=np.zeros((0, 0)),
        )
        fit.begin_attempt(world_size)
        return fit

    @property
    def error(self) -> float | None:
        """Sum of |y - prediction| over sum of y, None before a measured model was judged."""
        return self.missed_seconds / self.judged_seconds if self.judged_seconds > 0 else None

    def begin_attempt(self, world_size: int) -> None:
        """Other ranks come: they start from what these agree on."""
        settled, calls = self.model.moments_, float(self.model.num_observations_)
        self.ranks = self.ranks.rebase(Moments(settled.sums.tolist()), calls, world_size)
        self.paces = np.ones(world_size)
        self.scatters = np.full((world_size, _SCATTER_REPORTS), np.nan)

    def judge(self, points: Float64, speeds: Float64) -> None:
        """Predict points [m, F + 1] that the model has not learned from yet, of ranks of these
        speeds [m].

        Plans take speeds into account too: a slow rank is no error of the model.
        """
        if not len(points) or not self.model.is_calibrated_:
            return
        seconds = points[:, -1]
        kept = (1 - 1 / _ERROR_POINTS) ** len(points)
        predicted = points[:, :-1] @ self.model.coef_ / speeds
        missed = float(np.abs(seconds - predicted).sum())
        self.missed_seconds = kept * self.missed_seconds + missed
        self.judged_seconds = kept * self.judged_seconds + float(seconds.sum())

    def learn(self, ranks: Int64, sums: Float64, weights: Float64, fast_weights: Float64) -> None:
        """Fold in sums [n, N] of n different ranks, by the weights [n] that forgetting leaves to
        their age.
        """
        told = sums[:, 0] > 0
        if not told.all():
            ranks, sums = ranks[told], sums[told]
            weights, fast_weights = weights[told], fast_weights[told]
        if not len(ranks):
            return
        self.ranks.add(ranks, sums, weights)
        self.seconds += float(fast_weights @ sums[:, 1])
        newest = scatters_at_own_pace(sums, self.model.coef_)
        own = self.scatters[ranks]
        own[:, :-1] = own[:, 1:]
        own[:, -1] = newest
        self.scatters[ranks] = own
        self.fresh += len(ranks)

    def settle(self, doubted: Bools) -> None:
        """Make the model anew from all evidence but that of ``doubted`` ranks [W]."""
        consensus = self.ranks.agree(self.model, doubted)
        self.model, self.paces = consensus.model, consensus.paces
        self.fresh = 0

    def show(self, points: Float64) -> None:
        """Keep the newest points [m, F + 1], for people to look at."""
        if len(points):
            self.points = np.concatenate((self.points, points))[-MAX_POINTS:]

    def watch(self, seconds: Float64, features: Float64, doubted: Bools) -> float | None:
        """Look at a step's seconds [W] and features [W, F]; return the factor by which costs have
        changed once that is certain, 1.0 where only some have.
        """
        if not self.model.is_calibrated_:
            return None
        predicted = features @ self.model.coef_ * self.paces
        told = (predicted > 0) & (seconds > 0) & ~doubted
        if not told.any():
            return None
        shift = self.level.watch(math.log(lower_median(seconds[told] / predicted[told])))
        newest = self.scatters[told, -1]
        newest = newest[np.isfinite(newest)]
        bent = None
        if self.fresh and len(newest):
            bent = self.shape.watch(math.log(max(lower_median(newest), _TINY)))
        if shift is not None:
            return math.exp(shift)
        return 1.0 if bent is not None and bent > 0 else None

    def restart(self, factor: float) -> None:
        """Costs have changed by a factor: what was known before counts as little as a start."""
        self.ranks.reset(factor, self.model.min_observations)
        self.level, self.shape = Cusum(floor=_LEVEL_FLOOR), Cusum(floor=_SHAPE_FLOOR)
