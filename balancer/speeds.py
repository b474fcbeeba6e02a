"""Rank speeds: predicted over measured kernel seconds, against the job's typical rank.

Uneven data moves prediction and measurement alike and leaves the quotient alone; a slow rank
moves only one of them. That tells the two apart.

Shapes: S steps, W ranks.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# A normal distribution's standard deviation over its median absolute deviation.
_SIGMA_PER_MAD = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedSettings:
    """When a speed counts as different.

    Attributes:
        min_steps: steps in which the rank was measured.
        min_deviation: relative difference that is worth acting on.
        min_spreads: how far it must lie outside the rank's own scatter over steps.
    """

    min_steps: int = 10
    min_deviation: float = 0.05
    min_spreads: float = 2.0

    def __post_init__(self) -> None:
        if self.min_steps < 2:
            raise ValueError(f"min_steps={self.min_steps}: must be at least 2")
        if not 0 < self.min_deviation < 1:
            raise ValueError(f"min_deviation={self.min_deviation}: must be between 0 and 1")
        if self.min_spreads < 0:
            raise ValueError(f"min_spreads={self.min_spreads}: must not be negative")


class RankSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's speed.

    Attributes:
        measured: median over steps; 1.0 is the typical rank, 0.5 takes twice its time.
        steps: how many steps it is the median of.
        spread: robust standard deviation over those steps.
    """

    measured: float = 1.0
    steps: int = 0
    spread: float = 0.0

    def differs_from(self, reference: float, settings: SpeedSettings) -> bool:
        """Is there enough evidence that the speed is another than ``reference``?"""
        deviation = abs(self.measured - reference)
        return (
            self.steps >= settings.min_steps
            and deviation > settings.min_deviation * reference
            and deviation > settings.min_spreads * self.spread
        )

    def speed(self, settings: SpeedSettings) -> float:
        """The speed to act on: nominal unless there is enough evidence."""
        return self.measured if self.differs_from(1.0, settings) else 1.0


def rank_speeds(predicted: Float64, measured: Float64) -> list[RankSpeed]:
    """Return the speed of each rank from kernel seconds [S, W].

    A rank without kernels in a step has no say in it.
    """
    told = (predicted > 0) & (measured > 0)
    ratios = np.full(predicted.shape, np.nan)
    np.divide(predicted, measured, out=ratios, where=told)
    ratios = ratios[told.any(axis=1)]
    ratios /= np.nanmedian(ratios, axis=1, keepdims=True) if len(ratios) else 1.0
    return [_summarise(column[~np.isnan(column)]) for column in ratios.T]


def _summarise(ratios: Float64) -> RankSpeed:
    if not len(ratios):
        return RankSpeed()
    middle = float(np.median(ratios))
    spread = _SIGMA_PER_MAD * float(np.median(np.abs(ratios - middle)))
    return RankSpeed(measured=middle, steps=len(ratios), spread=spread)
