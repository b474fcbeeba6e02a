"""What a policy did to skew and step time: a comparison of steps that noise does not fool.

Data differ from step to step and timings scatter with heavy tails, so medians are compared and
ranks of values tested (Mann-Whitney), at a few fixed looks that share one chance of a false
alarm; and a difference counts only where it is large enough to matter.

Shapes: n steps before, m after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# "worse" is measured, "rolled back" is done about it: only in mode "adapt" does one follow.
Verdict = Literal["kept", "worse", "rolled back", "unclear"]

# Skew and step time are tested apart, each against its share of the chance of a false alarm.
_TESTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSettings:
    """How a policy's effect is judged.

    Attributes:
        settle_steps: first steps under a policy, which do not count.
        before_steps: newest steps under the old policy to compare with.
        min_before_steps: with fewer, plain Ulysses by the model stands in for the old policy.
        looks: numbers of steps under the policy at which it is judged; the last one settles it.
        false_alarm: chance that a policy without effect is ever found worse.
        min_effect: relative difference of medians that counts.
        min_rank_change: relative change of a rank's pace that explains skew without the policy.
        deadline_steps: complete steps after publishing at which an open trial ends.
    """

    settle_steps: int = 2
    before_steps: int = 16
    min_before_steps: int = 4
    looks: tuple[int, ...] = (5, 7, 10, 14, 20)
    false_alarm: float = 0.005
    min_effect: float = 0.02
    min_rank_change: float = 0.10
    deadline_steps: int = 200

    def __post_init__(self) -> None:
        for name in ("false_alarm", "min_effect", "min_rank_change"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be between 0 and 1")
        if self.settle_steps < 0:
            raise ValueError(f"settle_steps={self.settle_steps}: must not be negative")
        if not 1 < self.min_before_steps <= self.before_steps:
            raise ValueError(
                f"min_before_steps={self.min_before_steps}: must be at least 2 and at most "
                f"before_steps={self.before_steps}"
            )
        rising = list(self.looks) == sorted(set(self.looks))
        if not self.looks or not rising or self.looks[0] < 2:
            raise ValueError(f"looks={self.looks}: must be rising step counts of at least 2")
        if self.deadline_steps <= self.looks[-1]:
            raise ValueError(
                f"deadline_steps={self.deadline_steps}: must exceed the last of looks={self.looks}"
            )

    @property
    def significance(self) -> float:
        """Of one test at one look."""
        return self.false_alarm / (_TESTS * len(self.looks))


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a policy.

    Attributes:
        verdict: "worse" where the mode forbids to act on it.
        reason: for people, with the numbers.
        steps_before, steps_after: how many were compared.
        skew_before, skew_after: medians.
        step_change: median step time after over before, work and pace taken out; None if unknown.
        p_value: of the test that settled it: the chance of such a difference without an effect.
        ended_at: how many steps of the job were complete.
    """

    verdict: Verdict
    reason: str
    ended_at: int
    steps_before: int = 0
    steps_after: int = 0
    skew_before: float | None = None
    skew_after: float | None = None
    step_change: float | None = None
    p_value: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Medians of one figure, and the one-sided chances that it only seems worse, or better."""

    before: float
    after: float
    p_worse: float
    p_better: float

    @property
    def change(self) -> float:
        """The median after over that before."""
        return self.after / self.before if self.before > 0 else 1.0

    def worse(self, settings: TrialSettings) -> bool:
        return self.p_worse < settings.significance and self.change >= 1 + settings.min_effect

    def better(self, settings: TrialSettings) -> bool:
        return self.p_better < settings.significance and self.change <= 1 / (
            1 + settings.min_effect
        )


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Compare a figure of [n] steps with that of [m] others; smaller is better."""
    return Comparison(
        before=float(np.median(before)),
        after=float(np.median(after)),
        p_worse=_chance(after, before),
        p_better=_chance(before, after),
    )


def step_ratios(seconds: Sequence[float], work_seconds: Sequence[float]) -> Float64:
    """Return each step's seconds over what a line through all of them expects of its work.

    The line is a fixed share plus one that grows with the work, neither negative, fitted to all
    steps alike: so that without an effect the ratios before and after are exchangeable.
    """
    measured, work = np.asarray(seconds, dtype=float), np.asarray(work_seconds, dtype=float)
    safe = np.maximum(measured, np.finfo(float).tiny)
    # Columns of unit size: seconds of work may be far from 1, and the solver's limits are absolute.
    scale = max(float(work.mean()), np.finfo(float).tiny)
    level = float(np.median(safe))
    table = np.stack([level / safe, work / scale * level / safe], axis=1)
    from scipy.optimize import nnls  # slow to import, and never needed to start

    line, _ = nnls(table, np.ones(len(safe)))
    expected = level * (line[0] + line[1] * work / scale)
    return np.asarray(measured / np.maximum(expected, np.finfo(float).tiny), dtype=float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What a look compares: (n, m) ``steps``; ``step`` and ``planned`` where there is a model."""

    steps: tuple[int, int]
    skew: Comparison
    planned: float | None
    step: Comparison | None

    def verdict(self, settings: TrialSettings) -> Verdict | None:
        step = self.step
        if step and step.worse(settings):
            return "worse"
        # What skew stands for is time: a step that became shorter outweighs it.
        faster = step is not None and step.better(settings)
        if self.skew.worse(settings) and not faster:
            return "worse"
        no_slower = step is None or step.change <= 1.0
        if faster or (self.skew.better(settings) and no_slower):
            return "kept"
        return None

    def planned_worse(self, settings: TrialSettings) -> bool:
        """Does the model, too, find the plans less even than before?"""
        return self.planned is not None and self.planned >= 1 + settings.min_effect

    def effect(self, verdict: Verdict, why: str, ended_at: int) -> Effect:
        p_value = self._p_value(verdict)
        step = f", step time {self.step.change - 1:+.1%}" if self.step else ""
        return Effect(
            verdict=verdict,
            reason=(
                f"{why}: skew {self.skew.before:.3f} over {self.steps[0]} steps before, "
                f"{self.skew.after:.3f} over {self.steps[1]} under it{step} (p = {p_value:.2g})."
            ),
            ended_at=ended_at,
            steps_before=self.steps[0],
            steps_after=self.steps[1],
            skew_before=self.skew.before,
            skew_after=self.skew.after,
            step_change=self.step.change if self.step else None,
            p_value=p_value,
        )

    def _p_value(self, verdict: str) -> float:
        tests = [self.skew, self.step] if self.step else [self.skew]
        return min(t.p_better if verdict == "kept" else t.p_worse for t in tests)


def _chance(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """Return the one-sided p value of the first sample being larger (Mann-Whitney, exact).

    A tie counts half, and halves are rounded against the difference.
    """
    apart = np.asarray(larger)[:, None] - np.asarray(smaller)
    wins = int((apart > 0).sum() + (apart == 0).sum() / 2)
    return float(_tails(len(larger), len(smaller))[wins])


@lru_cache(maxsize=256)
def _tails(first: int, second: int) -> Float64:
    """Return the chances of at least 0, 1, ... wins of [first] values over [second] others.

    The numbers of orders with so many wins are the coefficients of the Gaussian binomial.
    """
    orders = np.zeros(first * second + 1)
    orders[0] = 1.0
    for own in range(1, first + 1):
        shift = second + own
        orders[shift:] -= orders[:-shift].copy()
        for begin in range(own):
            orders[begin::own] = np.cumsum(orders[begin::own])
    return np.asarray(np.cumsum(orders[::-1])[::-1] / orders.sum(), dtype=np.float64)
