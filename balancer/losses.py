"""Where the seconds of a step go: what each cause alone costs, as sums of one total.

A step waits for its slowest rank. The total is that rank's kernel seconds, less what every rank
would need were all nominal and evenly loaded; the exposed exchange comes on top. It is divided
in turn: what the plan left uneven as it saw the ranks, what stages differ by, what slow ranks add
to that, and what is left between prediction and measurement. So each part is about what a
step gains if that cause alone goes away.

Shapes: S steps; W ranks; M micro-batches in which ranks meet, 1 where only the step counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra.balancer.medians import spread
from libra.balancer.step_evidence import StepEvidence
from libra.balancer.step_record import skew

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

# A step that is this much shorter than its micro-batches' slowest ranks together never waited
# for each of them.
_CLOCK_ERROR = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """Means over steps, in seconds of a step unless said otherwise; None where no model tells.

    Attributes:
        data: what the plan left uneven, mismatches apart.
        mismatch: what cells add that ran at home because ranks disagreed.
        stages: by how much the slowest pipeline stage exceeds the mean of stages.
        speeds: what ranks of other speeds than the plan counted on, or slow ones, add.
        unexplained: measured beyond predicted.
        exchange: exposed waits beyond those for slower ranks.
        skew, home_skew: measured, and predicted under plain Ulysses.
        balanced: kernel seconds were ranks as evenly loaded as their speeds and stages allow.
        slowest: predicted kernel seconds of the slowest rank.
        predicted_skew: predicted, the largest over the mean.
        slowest_stage, stage_skew: the pipeline stage with most work, and that over the mean.
        saved: what the step would take longer under plain Ulysses, by the model.
        ratios: [W] measured over predicted kernel seconds, the mean over steps; 1 is typical.
        spread: robust standard deviation of those ratios over ranks and steps.
        mismatches: cells a step that ran at home because ranks disagreed.
        by_micro_batch: ranks are taken to meet in every micro-batch.
    """

    steps: int
    step_seconds: float
    kernel_seconds: float
    skew: float
    exchange: float
    mismatches: float
    data: float | None = None
    mismatch: float = 0.0
    stages: float = 0.0
    speeds: float = 0.0
    unexplained: float = 0.0
    home_skew: float | None = None
    balanced: float = 0.0
    slowest: float = 0.0
    predicted_skew: float = 1.0
    slowest_stage: int = 0
    stage_skew: float = 1.0
    saved: float = 0.0
    ratios: Float64 | None = None
    spread: float = 0.0
    by_micro_batch: bool = False


def measure_losses(steps: Sequence[StepEvidence], speeds: Float64, stages: Int64) -> Losses:
    """Return the mean losses of at least one step.

    Args:
        speeds: [W] as believed; 1 is nominal.
        stages: [W] pipeline stage of each rank.
    """
    priced = [step for step in steps if step.work is not None and step.home is not None]
    known = Losses(
        steps=len(steps),
        step_seconds=_mean([step.step_seconds for step in steps]),
        kernel_seconds=_mean([float(step.measured.mean()) for step in steps]),
        skew=_mean([skew(step.measured) for step in steps]),
        exchange=_mean([_exchange(step) for step in steps]),
        mismatches=_mean([step.mismatches for step in steps]),
    )
    names, dense = np.unique(stages, return_inverse=True)
    explained = _explain(known, priced, speeds, dense) if priced else known
    return replace(explained, slowest_stage=int(names[explained.slowest_stage]))


def _explain(
    known: Losses, steps: Sequence[StepEvidence], speeds: Float64, stages: Int64
) -> Losses:
    scaled = [_scaled(step, speeds, stages) for step in steps]
    together = _meet_in_micro_batches(scaled, speeds)
    parts = np.array([_parts(step, speeds, stages, together) for step in scaled])
    mismatched = np.array([step.mismatches > 0 for step in steps])
    data, stage, speed, unexplained, home, balanced, slowest, saved = parts.mean(axis=0).tolist()
    mismatch = _of_mismatches(parts[:, 0], mismatched)
    ratios = np.array([_ratios(step, speeds) for step in scaled])
    work = np.mean([step.work for step in scaled], axis=0)
    of_stage = _sums(work, stages) / _sums(np.ones_like(work), stages)
    return replace(
        known,
        data=data - mismatch,
        mismatch=mismatch,
        stages=stage,
        speeds=speed,
        unexplained=unexplained,
        home_skew=home,
        balanced=balanced,
        slowest=slowest,
        predicted_skew=_mean([skew(step.work / speeds) for step in scaled]),
        slowest_stage=int(of_stage.argmax()),
        stage_skew=skew(of_stage),
        saved=saved,
        ratios=ratios.mean(axis=0),
        spread=spread(ratios - 1.0),
        by_micro_batch=together,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scaled:
    """A step whose predictions are in seconds of this step: [W], [W], [W, M]."""

    seen: StepEvidence
    work: Float64
    home: Float64


def _scaled(step: StepEvidence, speeds: Float64, stages: Int64) -> _Scaled:
    assert step.work is not None
    assert step.home is not None
    # By the typical rank: neither a slow one nor a liar moves it.
    told = (step.work > 0) & (step.measured > 0)
    factor = float(np.median((step.measured * speeds)[told] / step.work[told])) if told.any() else 0
    work = step.work * factor
    # Home features are of one layer: only within a stage do they compare.
    at_home, of_stage = _sums(step.home, stages), _sums(work, stages)
    unit = np.divide(of_stage, at_home, out=np.zeros_like(of_stage), where=at_home > 0)
    return _Scaled(seen=step, work=work, home=step.home * unit[stages])


def _parts(
    step: _Scaled, speeds: Float64, stages: Int64, together: bool
) -> tuple[float, float, float, float, float, float, float, float]:
    seen, work = step.seen, step.work
    planned = seen.planned_speeds
    shares = seen.home_shares if together else seen.home_shares[:, :0]
    own = shares if seen.at_home else shares[:, :0]
    slowest = _span(work / speeds, own)
    data = _span(work / planned, own) - _fair(work, planned, stages)
    stage = _fair(work, np.ones_like(work), stages) - float(work.mean())
    unexplained = float(seen.measured.max() - (work / speeds).max())
    home = _span(step.home / speeds, shares)
    mean = float(step.home.mean())
    return (
        max(0.0, data),
        max(0.0, stage),
        slowest - float(work.mean()) - max(0.0, data) - max(0.0, stage),
        unexplained,
        _span(step.home, shares) / mean if mean > 0 else 1.0,
        _fair(work, speeds, stages),
        slowest,
        home - slowest,
    )


def _span(seconds: Float64, shares: Float64) -> float:
    """Return the slowest rank's seconds: of the step, or summed over its micro-batches."""
    if shares.shape[1] < 2:
        return float(seconds.max())
    return float((seconds[:, None] * shares).max(axis=0).sum())


def _fair(work: Float64, speeds: Float64, stages: Int64) -> float:
    """Return the seconds of the slowest stage were each stage evenly loaded."""
    return float((_sums(work, stages) / _sums(speeds, stages)).max())


def _sums(values: Float64, stages: Int64) -> Float64:
    return np.bincount(stages, weights=values).astype(np.float64)


def _meet_in_micro_batches(steps: Sequence[_Scaled], speeds: Float64) -> bool:
    """May ranks wait for each other in every micro-batch, as they do unless told otherwise?

    No step is then shorter than the slowest ranks of its micro-batches together.
    """
    several = [step for step in steps if step.seen.home_shares.shape[1] > 1]
    needed = sum(
        _span(step.work / speeds, step.seen.home_shares) for step in several if step.seen.at_home
    )
    took = sum(step.seen.step_seconds for step in several if step.seen.at_home)
    return bool(several) and needed <= (1 + _CLOCK_ERROR) * took


def _of_mismatches(data: Float64, mismatched: NDArray[np.bool_]) -> float:
    """Return what mismatched steps lose beyond the others, as a mean over all steps."""
    usual = float(data[~mismatched].mean()) if not mismatched.all() else 0.0
    return float(np.where(mismatched, np.maximum(0.0, data - usual), 0.0).mean())


def _exchange(step: StepEvidence) -> float:
    """Return what the exchange adds to the slowest rank's kernels.

    Ranks that wait for a slower one are still through no later than that one. A rank that says
    it was through only after the step's end is left out.
    """
    through = step.measured + step.waits
    possible = through <= (1 + _CLOCK_ERROR) * step.step_seconds
    longest = float((through[possible] if possible.any() else through).max() - step.measured.max())
    return min(longest, max(0.0, step.step_seconds - float(step.measured.max())))


def _ratios(step: _Scaled, speeds: Float64) -> Float64:
    predicted = step.work / speeds
    measured = step.seen.measured
    return np.divide(measured, predicted, out=np.ones_like(measured), where=predicted > 0)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
