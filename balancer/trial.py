"""A policy on trial: the steps before it and under it, and the verdict that they allow.

All steps of a trial are priced under one model, the one of its beginning, so that learning in
the meantime looks like no effect. Pure.

Shapes: W ranks.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.balancer.effects import (
    Comparison,
    Effect,
    Figures,
    TrialSettings,
    compare,
    step_ratios,
)
from libra.balancer.prices import Prices, changed_rank, pace_table
from libra.balancer.step_record import StepRecord, skew

Float64 = NDArray[np.float64]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a trial.

    Attributes:
        skew: as measured.
        planned_skew, home_skew: of what was computed, and under plain Ulysses, by the model.
        work_seconds: mean kernel seconds of a rank under plain Ulysses, at the step's pace.
    """

    step: int
    skew: float
    step_seconds: float
    planned_skew: float | None = None
    home_skew: float | None = None
    work_seconds: float | None = None


class Trial(msgspec.Struct, eq=False, kw_only=True):
    """A policy that is being tried.

    Attributes:
        version, parent: the policy, and the one that its steps are compared with.
        attempt: of the job; another one may be another machine.
        began_at: how many steps were complete when it was published.
        speeds: [W] as believed then; ``paces`` [W]: log of measured over predicted seconds.
        doubted: ranks that were not believed then.
        drift_step: of the newest drift of the kernels known then.
        prices: the model of then; None where kernels were not measured yet.
        settled: steps under the policy that do not count; ``looked``: looks taken.
    """

    version: int
    parent: int
    attempt: int
    began_at: int
    speeds: Float64
    paces: Float64 | None = None
    doubted: tuple[int, ...] = ()
    drift_step: int | None = None
    prices: Prices | None = None
    before: list[Observation] = []
    after: list[Observation] = []
    settled: int = 0
    looked: int = 0

    def note(self, record: StepRecord, settings: TrialSettings) -> None:
        """Take in a complete step; one whose ranks ran two policies tells of neither."""
        if not record.agreed or record.attempt != self.attempt:
            return
        if record.policy_version == self.parent and not self.after:
            before = [*self.before, self._observe(record)]
            self.before = before[-settings.before_steps :]
        elif record.policy_version == self.version and self.settled < settings.settle_steps:
            self.settled += 1
        elif record.policy_version == self.version and len(self.after) < settings.looks[-1]:
            self.after = [*self.after, self._observe(record)]

    def sentence(self, settings: TrialSettings) -> str:
        """Return how far the trial is."""
        steps = f"{len(self.after)} of {settings.looks[-1]} steps under it"
        return f"Policy {self.version} is on trial against policy {self.parent}: {steps}."

    def due(self, settings: TrialSettings) -> bool:
        """Is there a look that was not taken yet?"""
        return sum(look <= len(self.after) for look in settings.looks) > self.looked

    def judge(
        self, recent: Sequence[StepRecord], settings: TrialSettings, *, ended_at: int
    ) -> Effect | None:
        """Take a look; return the verdict if there is one.

        ``recent`` records tell whether a rank changed its pace meanwhile.
        """
        self.looked = sum(look <= len(self.after) for look in settings.looks)
        figures = self._compare(settings)
        if figures is None:
            return None
        verdict = figures.verdict(settings)
        changed = None
        if verdict == "worse" and not figures.planned_worse(settings):
            changed = self._changed_rank(recent, settings)
        if changed:
            return figures.effect("unclear", changed, ended_at)
        if verdict is None and len(self.after) >= settings.looks[-1]:
            return figures.effect("kept", "It is not measurably worse", ended_at)
        if verdict is None:
            return None
        reason = "It is better" if verdict == "kept" else "It is worse"
        return figures.effect(verdict, reason, ended_at)

    def give_up(self, why: str, *, ended_at: int, settings: TrialSettings) -> Effect:
        """End the trial early; only what is certainly the policy's fault still counts."""
        figures = self._compare(settings)
        if figures is None:
            return Effect(
                verdict="unclear",
                reason=f"{why}.",
                ended_at=ended_at,
                steps_before=len(self.before),
                steps_after=len(self.after),
            )
        if figures.verdict(settings) == "worse" and figures.planned_worse(settings):
            return figures.effect("worse", "It is worse", ended_at)
        return figures.effect("unclear", why, ended_at)

    def _observe(self, record: StepRecord) -> Observation:
        seen = Observation(step=record.step, skew=record.skew, step_seconds=record.step_seconds)
        actual = self.prices.actual(record) if self.prices else None
        if actual is None or record.features is None or self.prices is None:
            return seen
        home = record.features.home @ self.prices.tile
        told = (actual > 0) & (record.kernel_seconds > 0)
        pace = float(np.median(record.kernel_seconds[told] / actual[told])) if told.any() else 1.0
        return msgspec.structs.replace(
            seen,
            planned_skew=skew(actual / self.speeds),
            home_skew=skew(home / self.speeds),
            work_seconds=float(home.mean()) * pace,
        )

    def _compare(self, settings: TrialSettings) -> "Figures | None":
        before, after = self.before, self.after
        if len(after) < 2:
            return None
        if len(before) >= settings.min_before_steps:
            return Figures(
                steps=(len(before), len(after)),
                skew=compare([o.skew for o in before], [o.skew for o in after]),
                planned=_planned([o.planned_skew for o in before], after),
                step=_step(before, after),
            )
        home = [o.home_skew for o in after]
        if None in home:
            return None
        known = [value for value in home if value is not None]
        return Figures(
            steps=(len(before), len(after)),
            skew=compare(known, [o.skew for o in after]),
            planned=_planned(home, after),
            step=None,
        )

    def _changed_rank(self, recent: Sequence[StepRecord], settings: TrialSettings) -> str | None:
        """Return a sentence on a rank whose pace under the policy is not the one before it."""
        if self.prices is None or self.paces is None:
            return None
        steps = {observation.step for observation in self.after}
        table = pace_table([r for r in recent if r.step in steps], self.prices)
        found = changed_rank(table, self.paces, settings.min_rank_change)
        if found is None:
            return None
        rank, factor = found
        return f"Rank {rank} changed its pace by a factor {factor:.2f} meanwhile"


def _planned(before: Sequence[float | None], after: Sequence[Observation]) -> float | None:
    """Return how planned skew changed, the median after over that before."""
    old = [value for value in before if value is not None]
    new = [o.planned_skew for o in after if o.planned_skew is not None]
    return float(np.median(new) / np.median(old)) if old and new else None


def _step(before: Sequence[Observation], after: Sequence[Observation]) -> Comparison | None:
    """Compare step times with work and pace taken out; None where work is not known."""
    steps = [*before, *after]
    work = [o.work_seconds for o in steps]
    if None in work:
        return None
    ratios = step_ratios([o.step_seconds for o in steps], [w for w in work if w is not None])
    return compare(ratios[: len(before)].tolist(), ratios[len(before) :].tolist())
