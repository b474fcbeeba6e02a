"""The cost models of a job, one per kernel kind, each with the error it made before it learned.

The error is prequential: a report's points are predicted first and folded in after, so it is
held out by construction. It depends on the order of arrival; the fits themselves do not, unless
costs drift. A fit is made anew at most once per complete step.

Shapes: F = 6 features; K kernel kinds; W ranks.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.drift import Drift
from libra.balancer.forgetting import advanced, passed_steps, remaining, steps_behind
from libra.balancer.kind_fit import KindFit
from libra.balancer.model import QuadraticCostModel
from libra.balancer.step_record import StepRecord
from libra.balancer.wire import Report

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_KINDS = 32
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

    def has_room(self, report: Report) -> bool:
        return len(_kinds(report) | {fit.kind: None for fit in self.fits}) <= MAX_KINDS

    def learn(self, report: Report, *, speed: float) -> None:
        """Judge and fold in a report's kernel calls, as old as the newest step it tells of."""
        for kind in _kinds(report):
            if self.find(kind) is None:
                self.fits.append(KindFit.empty(kind, self._new_model(), self.world_size))
        if self.clock is None:
            self.clock = report.newest_step
        age = steps_behind(self.clock, report.newest_step)
        weight = remaining(age, self.half_life_steps)
        fast_weight = remaining(age, _FAST_HALF_LIFE_STEPS)
        for moments in report.moments:
            fit = self.find(moments.kind)
            assert fit is not None
            if report.rank not in self.doubted:
                fit.judge(moments.points, speed)
                fit.show(moments.points)
            fit.learn(report.rank, moments, weight=weight, fast_weight=fast_weight)
            # Without complete steps the fits must not wait for ever.
            if fit.fresh >= 2 * self.world_size:
                fit.settle(self._doubted())

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
        """Forget up to ``step``, the newest complete one."""
        passed = passed_steps(self.clock, step)
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

    def _new_model(self) -> QuadraticCostModel:
        return QuadraticCostModel(
            min_observations=self.min_observations, half_life_steps=self.half_life_steps
        )


def _kinds(report: Report) -> dict[KernelKind, None]:
    """Return the kinds that a report speaks of, an ordered set."""
    measured = [moments.kind for moments in report.moments]
    counted = [kernel.kind for totals in report.steps for kernel in totals.kernels]
    return dict.fromkeys(measured + counted)


def _forward(kind: KernelKind) -> KernelKind:
    """Return the kind's forward half: the name of the pair."""
    return replace(kind, direction="forward")
