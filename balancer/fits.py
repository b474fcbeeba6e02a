"""The cost models of a job, one per kernel kind, each with the error it made before it learned.

The error is prequential: a report's points are predicted first and folded in after, so it is
held out by construction. It depends on the order of arrival; the fits themselves do not.

Shapes: F = 4 features; K kernel kinds.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from libra.balancer.wire import KernelMoments, Point, Report

Float64 = NDArray[np.float64]

MAX_KINDS = 32
MAX_POINTS = 256
# The error averages over about this many points, some five reports: a busy start is soon past.
_ERROR_POINTS = 150
# Evidence further from the newest complete step than this is taken to be this far: a wild step
# number must neither drown other evidence nor wipe it.
_MAX_AHEAD_STEPS = 64
_MAX_BEHIND_STEPS = 4096


class KindFit(msgspec.Struct, eq=False, kw_only=True):
    """One kind's model, its newest points, and the two sums whose quotient is its error."""

    kind: KernelKind
    model: QuadraticCostModel
    seconds: float = 0.0
    points: list[Point] = []
    missed_seconds: float = 0.0
    judged_seconds: float = 0.0

    @property
    def error(self) -> float | None:
        """Sum of |y - prediction| over sum of y, None before a measured model was judged."""
        return self.missed_seconds / self.judged_seconds if self.judged_seconds > 0 else None

    def judge(self, points: Sequence[Point], speed: float) -> None:
        """Predict points that the model has not learned from yet, of a rank of this speed.

        Plans take speeds into account too: a slow rank is no error of the model.
        """
        if not points or self.model.source_ == "prior":
            return
        table = np.asarray(points, dtype=np.float64)
        seconds = table[:, -1]
        kept = (1 - 1 / _ERROR_POINTS) ** len(points)
        missed = float(np.abs(seconds - self.model.predict(table[:, :-1]) / speed).sum())
        self.missed_seconds = kept * self.missed_seconds + missed
        self.judged_seconds = kept * self.judged_seconds + float(seconds.sum())

    def learn(self, report: KernelMoments, age_steps: float) -> None:
        moments = Moments(report.sums)
        self.model.merge(moments, age_steps=age_steps)
        self.seconds += moments.seconds
        self.points = [*self.points, *report.points][-MAX_POINTS:]


class KernelFits(msgspec.Struct, eq=False, kw_only=True):
    """All kinds' fits, and the step up to which they have forgotten."""

    min_observations: int
    half_life_steps: float
    fits: list[KindFit] = []
    clock: int | None = None

    def find(self, kind: KernelKind) -> KindFit | None:
        return next((fit for fit in self.fits if fit.kind == kind), None)

    def has_room(self, report: Report) -> bool:
        return len(_kinds(report) | {fit.kind: None for fit in self.fits}) <= MAX_KINDS

    def learn(self, report: Report, *, speed: float) -> None:
        """Judge and fold in a report's kernel calls, as old as the newest step it tells of."""
        for kind in _kinds(report):
            if self.find(kind) is None:
                self.fits.append(KindFit(kind=kind, model=self._new_model()))
        age = self._age(max((totals.step for totals in report.steps), default=None))
        for moments in report.moments:
            fit = self.find(moments.kind)
            assert fit is not None
            fit.judge(moments.points, speed)
            fit.learn(moments, age)

    def advance(self, step: int) -> None:
        """Forget up to ``step``, the newest complete one."""
        if self.clock is not None and 0 < step - self.clock <= _MAX_BEHIND_STEPS:
            for fit in self.fits:
                fit.model.forget(step - self.clock)
        if self.clock is None or step > self.clock or self.clock - step > _MAX_BEHIND_STEPS:
            self.clock = step

    def restart_clock(self) -> None:
        """A new attempt may go back in steps: its evidence is new all the same."""
        self.clock = None

    def coefficients(self, kinds: Sequence[KernelKind]) -> Float64 | None:
        """Return [K, F] seconds per feature, None unless all kinds are measured."""
        fits = [self.find(kind) for kind in kinds]
        measured = [fit for fit in fits if fit and fit.model.source_ == "measured"]
        if not kinds or len(measured) < len(kinds):
            return None
        return np.stack([fit.model.coef_ for fit in measured])

    def tile_coefficients(self) -> Float64 | None:
        """Return [F] seconds per feature of the job's dominant kernel, both directions added."""
        pairs: dict[KernelKind, list[KindFit]] = {}
        for fit in self.fits:
            pairs.setdefault(_forward(fit.kind), []).append(fit)
        if not pairs:
            return None
        dominant = max(pairs.values(), key=lambda fits: sum(fit.seconds for fit in fits))
        coefficients = self.coefficients([fit.kind for fit in dominant])
        return None if coefficients is None else coefficients.sum(axis=0)

    def configure(self, *, min_observations: int, half_life_steps: float) -> None:
        """Take over settings, for what is known as well."""
        self.min_observations = min_observations
        self.half_life_steps = half_life_steps
        for fit in self.fits:
            fit.model.set_params(min_observations=min_observations, half_life_steps=half_life_steps)

    def _age(self, step: int | None) -> int:
        if self.clock is None:
            self.clock = step
        if step is None or self.clock is None:
            return 0
        return min(max(self.clock - step, -_MAX_AHEAD_STEPS), _MAX_BEHIND_STEPS)

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
