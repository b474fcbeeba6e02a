"""Rank speeds: predicted over measured kernel seconds, against the job's typical rank.

Uneven data moves prediction and measurement alike and leaves the quotient alone; a slow rank
moves only one of them. That tells the two apart.

Shapes: S steps, W ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.balancer.medians import MEDIAN_ERROR, SIGMA_PER_MAD, column_medians

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

SLOWEST, FASTEST = 0.25, 4.0
# A normal distribution's standard deviation over the median distance of two draws.
_SIGMA_PER_JUMP = 1.0484
# The largest noise of late counts: a few quiet steps make no rank's speed certain.
_NOISE_KEPT = 0.98
# A rank that was called different is so until it comes this near to nominal.
_WAY_BACK = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedSettings:
    """When a speed counts as different.

    Attributes:
        min_steps: steps in which the rank was measured.
        min_deviation: relative difference that is worth acting on.
        min_spreads: how far it must lie outside the rank's own scatter over steps.
        min_errors: and outside the standard error of the median of those steps.
        slowest, fastest: speeds are taken to lie between these.
    """

    min_steps: int = 10
    min_deviation: float = 0.05
    min_spreads: float = 2.0
    min_errors: float = 6.0
    slowest: float = SLOWEST
    fastest: float = FASTEST

    def __post_init__(self) -> None:
        if self.min_steps < 2:
            raise ValueError(f"min_steps={self.min_steps}: must be at least 2")
        if not 0 < self.min_deviation < 1:
            raise ValueError(f"min_deviation={self.min_deviation}: must be between 0 and 1")
        for name in ("min_spreads", "min_errors"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must not be negative")
        if not 0 < self.slowest < 1:
            raise ValueError(f"slowest={self.slowest}: must be between 0 and 1")
        if not 1 < self.fastest < float("inf"):
            raise ValueError(f"fastest={self.fastest}: must be above 1 and finite")


class RankSpeed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's speed.

    Attributes:
        measured: median over steps; 1.0 is the typical rank, 0.5 takes twice its time.
        steps: how many steps it is the median of.
        spread: robust standard deviation over those steps, relative.
        error: relative standard error of the median, no smaller than the job's noise allows.
        noise: the typical rank's scatter from step to step, the largest of late.
        confirmed: it counts as different from nominal; None where that follows from the above.
        doubt: why it is not believed; empty where it is.
    """

    measured: float = 1.0
    steps: int = 0
    spread: float = 0.0
    error: float = 0.0
    noise: float = 0.0
    confirmed: bool | None = None
    doubt: str = ""

    def differs_from(self, reference: float, settings: SpeedSettings) -> bool:
        """Is there enough evidence that the speed to act on is another than ``reference``?"""
        if self.doubt:
            return abs(1.0 - reference) > settings.min_deviation * reference
        deviation = abs(self.measured - reference)
        return (
            self.steps >= settings.min_steps
            and deviation > settings.min_deviation * reference
            and deviation > settings.min_spreads * self.spread * reference
            and deviation > settings.min_errors * self.error * reference
        )

    def speed(self, settings: SpeedSettings) -> float:
        """The speed to act on: nominal unless there is enough evidence, and it is believed."""
        if self.doubt:
            return 1.0
        different = self.differs_from(1.0, settings) if self.confirmed is None else self.confirmed
        return self.measured if different else 1.0


def rank_speeds(
    predicted: Float64,
    measured: Float64,
    settings: SpeedSettings | None = None,
    *,
    before: Sequence[RankSpeed] = (),
    believed: Bools | None = None,
) -> list[RankSpeed]:
    """Return the speed of each rank from kernel seconds [S, W].

    The reference is the upper median of ranks: of two ranks the faster is the typical one. A rank
    without kernels in a step has no say in it, and one that is not ``believed`` [W] none in what is
    typical. ``before`` are the speeds of the step before: a rank that was different stays so until
    it is clearly back.
    """
    settings = settings or SpeedSettings()
    ratios = log_ratios(predicted, measured)
    ratios -= _typical_ratio(ratios, believed)[:, None]
    middle, spread, steps = _summarise(ratios)
    standard = _reference(middle, steps, believed)
    speeds = np.clip(np.exp(middle - standard), settings.slowest, settings.fastest)
    noise = _noise(ratios, before)
    # Few ranks share much of their noise with the median that it is measured from.
    shared = len(steps) / max(len(steps) - 1, 1)
    errors = MEDIAN_ERROR * shared * np.maximum(spread, noise) / np.sqrt(np.maximum(steps, 1))
    was = np.array([one.confirmed is True for one in before] or [False] * len(steps))
    confirmed = _confirm(speeds, steps, spread, errors, was, settings)
    columns = (speeds.tolist(), steps.tolist(), spread.tolist(), errors.tolist())
    return [
        RankSpeed(measured=speed, steps=n, spread=scatter, error=error, noise=noise, confirmed=yes)
        for speed, n, scatter, error, yes in zip(*columns, confirmed.tolist(), strict=True)
    ]


def speeds_to_act_on(speeds: Sequence[RankSpeed], settings: SpeedSettings) -> Float64:
    """Return [W]: 1 for all but the ranks whose other speed is certain, and believed."""
    return np.array([one.speed(settings) for one in speeds], dtype=np.float64)


def look_different(before: Float64, now: Float64) -> bool:
    """Do speeds [W] differ as exactly as anyone looks?"""
    return len(before) != len(now) or bool((np.round(before, 2) != np.round(now, 2)).any())


def log_ratios(predicted: Float64, measured: Float64) -> Float64:
    """Return [S, W] log of predicted over measured seconds, NaN where a rank ran no kernels."""
    told = (predicted > 0) & (measured > 0)
    ratios = np.full(predicted.shape, np.nan)
    np.divide(predicted, measured, out=ratios, where=told)
    np.log(ratios, out=ratios, where=told)
    return ratios


def jumps(ratios: Float64) -> tuple[Float64, NDArray[np.int64]]:
    """Return [W], [W]: how far log ratios [S, W] scatter from step to step, and the steps told.

    Between neighbours, so that a rank that becomes slow once scatters no more than before.
    """
    steps = np.abs(np.diff(ratios, axis=0))
    return _SIGMA_PER_JUMP * column_medians(steps), np.isfinite(steps).sum(axis=0)


def _typical_ratio(ratios: Float64, believed: Bools | None) -> Float64:
    """Return [S]: the median of each step's log ratios, of believed ranks where there are any."""
    middle = column_medians(ratios.T)
    if believed is None or believed.all():
        return middle
    honest = column_medians(ratios[:, believed].T)
    return np.asarray(np.where(np.isfinite(honest), honest, middle), dtype=np.float64)


def _summarise(ratios: Float64) -> tuple[Float64, Float64, NDArray[np.int64]]:
    """Return median, robust deviation and number of each column, zeros where it has nothing."""
    steps = np.isfinite(ratios).sum(axis=0)
    middle, spread = np.zeros(len(steps)), np.zeros(len(steps))
    seen = steps > 0
    middle[seen] = column_medians(ratios[:, seen])
    distances = np.abs(ratios[:, seen] - middle[seen])
    spread[seen] = SIGMA_PER_MAD * column_medians(distances)
    return middle, spread, steps


def _noise(ratios: Float64, before: Sequence[RankSpeed]) -> float:
    """Return the typical rank's scatter from step to step, or what is left of an earlier one."""
    scatters, _ = jumps(ratios)
    known = scatters[np.isfinite(scatters)]
    now = float(np.median(known)) if len(known) else 0.0
    return max(now, _NOISE_KEPT * before[0].noise) if before else now


def _reference(middle: Float64, steps: NDArray[np.int64], believed: Bools | None) -> float:
    """Return the upper median of log speeds [W] among believed ranks that were measured."""
    usable = steps > 0
    if believed is not None and (usable & believed).any():
        usable &= believed
    values = np.sort(middle[usable])
    return float(values[len(values) // 2]) if len(values) else 0.0


def _confirm(
    speeds: Float64,
    steps: NDArray[np.int64],
    spread: Float64,
    errors: Float64,
    was: Bools,
    settings: SpeedSettings,
) -> Bools:
    """Return [W]: who counts as different; it takes more to become so than to stay so."""
    deviation = np.minimum(np.abs(speeds - 1.0), np.abs(np.log(speeds)))
    scatter = np.maximum(settings.min_spreads * spread, settings.min_errors * errors)
    enough = (steps >= settings.min_steps) & (deviation > scatter)
    stays = was & (deviation > _WAY_BACK * settings.min_deviation)
    return np.asarray((enough & (deviation > settings.min_deviation)) | stays, dtype=np.bool_)
