"""One kernel kind's cost model, and everything it is made from and judged by.

Shapes: W ranks; F = 6 features; N sums.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.drift import Cusum
from libra.balancer.medians import lower_median
from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from libra.balancer.rank_moments import RankMoments, scatter
from libra.balancer.wire import KernelMoments, Point

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
        seconds: of its newest calls, under fast forgetting: is it used now?
        missed_seconds, judged_seconds: the error is their quotient.
        level, shape: tests for a change of all its costs, and of some.
        fresh: reports since the last ``settle``.
    """

    kind: KernelKind
    model: QuadraticCostModel
    ranks: RankMoments
    paces: Float64
    scatters: Float64
    seconds: float = 0.0
    points: list[Point] = []
    missed_seconds: float = 0.0
    judged_seconds: float = 0.0
    level: Cusum = msgspec.field(default_factory=lambda: Cusum(floor=_LEVEL_FLOOR))
    shape: Cusum = msgspec.field(default_factory=lambda: Cusum(floor=_SHAPE_FLOOR))
    fresh: int = 0

    @classmethod
    def empty(cls, kind: KernelKind, model: QuadraticCostModel, world_size: int) -> "KindFit":
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

    def judge(self, points: Sequence[Point], speed: float) -> None:
        """Predict points that the model has not learned from yet, of a rank of this speed.

        Plans take speeds into account too: a slow rank is no error of the model.
        """
        if not points or not self.model.is_calibrated_:
            return
        table = np.asarray(points, dtype=np.float64)
        seconds = table[:, -1]
        kept = (1 - 1 / _ERROR_POINTS) ** len(points)
        missed = float(np.abs(seconds - self.model.predict(table[:, :-1]) / speed).sum())
        self.missed_seconds = kept * self.missed_seconds + missed
        self.judged_seconds = kept * self.judged_seconds + float(seconds.sum())

    def learn(self, rank: int, report: KernelMoments, *, weight: float, fast_weight: float) -> None:
        """Fold in a rank's report, by the weights that forgetting leaves to its age."""
        sums = np.asarray(report.sums, dtype=np.float64)
        if not sums[0] > 0:
            return
        self.ranks.add(rank, sums, weight)
        self.seconds += fast_weight * float(sums[1])
        own = self.scatters[rank]
        own[:-1] = own[1:]
        own[-1] = scatter(sums, self.model.coef_)
        self.fresh += 1

    def settle(self, doubted: Bools) -> None:
        """Make the model anew from all evidence but that of ``doubted`` ranks [W]."""
        consensus = self.ranks.agree(self.model, doubted)
        self.model, self.paces = consensus.model, consensus.paces
        self.fresh = 0

    def show(self, points: Sequence[Point]) -> None:
        """Keep the newest points, for people to look at."""
        self.points = [*self.points, *points][-MAX_POINTS:]

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
