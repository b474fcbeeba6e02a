"""The cost models of a job, one per kernel kind, each with the error it made before it learned.

The error is prequential: a batch's points are predicted first and folded in after, so it is
held out by construction. It depends on the order of arrival; the fits themselves do not, unless
costs drift. A fit is made anew at most once per complete step.

Shapes: F = 6 features; K kernel kinds; W ranks; R rows of a batch.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.batch import Batch
from libra.balancer.batch_columns import MomentColumns, point_table
from libra.balancer.cost_model import CostModel
from libra.balancer.drift import Drift
from libra.balancer.forgetting import (
    advanced,
    passed_steps,
    remaining,
    remaining_each,
    steps_behind_each,
)
from libra.balancer.kind_fit import KindFit
from libra.balancer.step_record import StepRecord

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_KINDS = 32
# A kind keeps some 300 bytes of each rank: a large job keeps fewer of them.
_MAX_RANK_KINDS, _MIN_KINDS = 1 << 18, 4
MAX_DRIFTS = 64
# Which kernel is in use is judged by the newest calls: an evaluation is soon forgotten.
_FAST_HALF_LIFE_STEPS = 8.0
# A kernel of a smaller share of all kernel seconds holds nothing up, and tells of nobody.
_NEGLIGIBLE_SHARE = 0.01


class KernelFits(msgspec.Struct, eq=False, kw_only=True):
    """All kinds' fits, the step up to which they have forgotten, and when costs changed.

    ``doubted`` are the ranks whose evidence is kept, but left out of the fits.
    """

    min_observations: int
    half_life_steps: float
    fits: list[KindFit] = []
    clock: int | None = None
    world_size: int = 0
    doubted: list[int] = []
    drifts: list[Drift] = []

    def find(self, kind: KernelKind) -> KindFit | None:
        return next((fit for fit in self.fits if fit.kind == kind), None)

    def in_use(self) -> list[KindFit]:
        """Return those of more than next to no seconds: no evaluation's few calls, no warm-up's."""
        least_s = _NEGLIGIBLE_SHARE * sum(fit.seconds for fit in self.fits)
        return [fit for fit in self.fits if fit.seconds >= least_s]

    def has_room(self, batch: Batch) -> bool:
        return all(self.find(kind) for kind in batch.kinds) or (
            len({fit.kind for fit in self.fits}.union(batch.kinds)) <= max_kinds(batch.world_size)
        )

    def learn(self, batch: Batch, speeds: Float64) -> None:
        """Judge and fold in kernel calls of ranks of these speeds [R], each row as old as the
        newest step it tells of.
        """
        ranks = np.array(batch.ranks)
        fits = [self._found(kind) for kind in batch.kinds]
        newest = batch.newest_steps()
        if self.clock is None:
            self.clock = next((step for step in newest if step is not None), None)
        ages = steps_behind_each(self.clock, newest)
        weights = remaining_each(ages, self.half_life_steps)
        fast_weights = remaining_each(ages, _FAST_HALF_LIFE_STEPS)
        for columns in batch.moments:
            fit, rows = fits[columns.kind], columns.rows
            self._judge(fit, batch, columns, speeds)
            fit.learn(ranks[rows], columns.sums_table, weights[rows], fast_weights[rows])
            # Without complete steps the fits must not wait for ever.
            if fit.fresh >= 2 * self.world_size:
                fit.settle(self._doubted())

    def _judge(self, fit: KindFit, batch: Batch, columns: MomentColumns, speeds: Float64) -> None:
        """Predict the points of believed ranks, and keep them to be looked at."""
        if not columns.point_rows:
            return
        points = point_table(columns.points).astype(np.float64)
        speeds = speeds[columns.point_rows]
        if self.doubted:
            ranks = [batch.ranks[row] for row in columns.point_rows]
            believed = ~np.isin(ranks, self.doubted)
            points, speeds = points[believed], speeds[believed]
        fit.judge(points, speeds)
        fit.show(points)

    def _found(self, kind: KernelKind) -> KindFit:
        """Return the kind's fit, a new one where there is none."""
        fit = self.find(kind)
        if fit is None:
            fit = KindFit.empty(kind, self._new_model(), self.world_size)
            self.fits.append(fit)
        return fit

    def settle(self) -> None:
        """Make the fits anew that have new evidence."""
        for fit in self.fits:
            if fit.fresh:
                fit.settle(self._doubted())

    def doubt(self, ranks: Collection[int]) -> None:
        """Leave these ranks out of the fits, and nobody else."""
        if sorted(ranks) != self.doubted:
            self.doubted = sorted(ranks)
            for fit in self.fits:
                fit.settle(self._doubted())

    def watch(self, record: StepRecord) -> None:
        """Look for a lasting change of costs in a complete step, and start anew after one."""
        features = record.features
        if features is None:
            return
        for column, kind in enumerate(features.kinds):
            fit = self.find(kind)
            if fit is None:
                continue
            actual, doubted = features.actual[:, column], self._doubted()
            factor = fit.watch(features.seconds[:, column], actual, doubted)
            if factor is not None:
                fit.restart(factor)
                fit.settle(doubted)
                drift = Drift(step=record.step, kind=kind, factor=factor)
                self.drifts = [*self.drifts, drift][-MAX_DRIFTS:]

    def advance(self, step: int) -> None:
        """Forget up to ``step``, the newest complete one, and note how good the fits are."""
        passed = passed_steps(self.clock, step)
        for fit in self.fits:
            fit.course.note(step, fit.error)
        if passed:
            for fit in self.fits:
                fit.ranks.scale(remaining(passed, self.half_life_steps))
                fit.seconds *= remaining(passed, _FAST_HALF_LIFE_STEPS)
        self.clock = advanced(self.clock, step)

    def begin_attempt(self, world_size: int) -> None:
        """A new attempt may go back in steps, and has other ranks: its evidence is new all the
        same, and starts from what the old one's ranks agreed on.
        """
        self.settle()
        most = max_kinds(world_size)
        used = sorted(self.fits, key=lambda fit: -fit.seconds)[:most]
        self.fits = [fit for fit in self.fits if fit in used]
        self.clock, self.world_size, self.doubted = None, world_size, []
        for fit in self.fits:
            fit.begin_attempt(world_size)

    def coefficients(self, kinds: Sequence[KernelKind]) -> Float64 | None:
        """Return [K, F] seconds per feature, None unless all kinds are measured."""
        fits = [self.find(kind) for kind in kinds]
        measured = [fit for fit in fits if fit and fit.model.is_calibrated_]
        if not kinds or len(measured) < len(kinds):
            return None
        return np.stack([fit.model.coef_ for fit in measured])

    def tile_coefficients(self) -> Float64 | None:
        """Return [F] seconds per feature of the kernel in use, both directions added.

        A kernel that runs forward only, as in an evaluation, is not what training waits for.
        """
        pairs: dict[KernelKind, list[KindFit]] = {}
        for fit in self.fits:
            pairs.setdefault(_forward(fit.kind), []).append(fit)
        if not pairs:
            return None
        used = max(pairs.values(), key=lambda fits: (len(fits), sum(fit.seconds for fit in fits)))
        coefficients = self.coefficients([fit.kind for fit in used])
        return None if coefficients is None else coefficients.sum(axis=0)

    def configure(self, *, min_observations: int, half_life_steps: float) -> None:
        """Take over settings, for what is known as well."""
        self.min_observations = min_observations
        self.half_life_steps = half_life_steps
        for fit in self.fits:
            fit.model.set_params(min_observations=min_observations, half_life_steps=half_life_steps)

    def _doubted(self) -> Bools:
        doubted = np.zeros(self.world_size, dtype=np.bool_)
        doubted[self.doubted] = True
        return doubted

    def _new_model(self) -> CostModel:
        return CostModel(
            min_observations=self.min_observations, half_life_steps=self.half_life_steps
        )


def max_kinds(world_size: int) -> int:
    """Return how many kinds a job of so many ranks keeps."""
    return max(_MIN_KINDS, min(MAX_KINDS, _MAX_RANK_KINDS // world_size))


def _forward(kind: KernelKind) -> KernelKind:
    """Return the kind's forward half: the name of the pair."""
    return replace(kind, direction="forward")
