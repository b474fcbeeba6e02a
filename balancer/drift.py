"""Has the cost of a kernel changed for good? A sequential test on one number a step.

Pure. Each kind has two: the typical rank's log of measured over predicted seconds, which a
throttled clock moves, and the log of its calls' scatter around the model, which a change of one
coefficient moves. Two-sided CUSUM sums, in units of the number's own noise.
"""

import math
from statistics import median

import msgspec

from libra.attention.observer import KernelKind

_WARM_UP = 16
# In noises: what a step may stray without counting, how much of one step counts (an odd step must
# not decide), and the sum that decides. Simulated: one in a thousand jobs of 2,000 steps.
_SLACK = 1.0
_CLIP = 4.0
_LIMIT = 11.0
_SURE = 3
_NOISE_STEPS = 32
_CENTRE_STEPS = 64
# The mean absolute difference of two draws of a normal distribution over its deviation.
_DIFFERENCE = 1.128


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """From about ``step`` on, a kind's calls cost ``factor`` times as much."""

    step: int
    kind: KernelKind
    factor: float


class Cusum(msgspec.Struct, kw_only=True):
    """Watch one number for a lasting change of its level.

    Attributes:
        floor: noise is taken to be at least this: smaller changes are left to forgetting.
        values: the first ones, until there are enough to know level and noise.
        run: the distances from the level since the sums last were zero.
    """

    floor: float
    values: list[float] = []
    centre: float = 0.0
    noise: float = 0.0
    newest: float = 0.0
    above: float = 0.0
    below: float = 0.0
    run: list[float] = []

    def watch(self, value: float) -> float | None:
        """Take in a step's value; return how far the level moved once that is certain."""
        if len(self.values) < _WARM_UP:
            self._warm_up(value)
            return None
        distance = value - self.centre
        self._sum(distance)
        if max(self.above, self.below) > _LIMIT:
            # The last ones are surely from after the change.
            return median(self.run[-_SURE:])
        self._learn(value, distance)
        return None

    def _warm_up(self, value: float) -> None:
        self.values = [*self.values, value]
        if len(self.values) < _WARM_UP:
            return
        self.centre = median(self.values)
        pairs = zip(self.values[1:], self.values[:-1], strict=True)
        self.noise = sum(abs(one - other) for one, other in pairs) / (_WARM_UP - 1) / _DIFFERENCE
        self.newest = value

    def _sum(self, distance: float) -> None:
        noises = min(max(distance / max(self.noise, self.floor), -_CLIP), _CLIP)
        self.above = max(0.0, self.above + noises - _SLACK)
        self.below = max(0.0, self.below - noises - _SLACK)
        suspicious = max(self.above, self.below) > 0.0
        self.run = [*self.run, distance][-_WARM_UP:] if suspicious else []

    def _learn(self, value: float, distance: float) -> None:
        """Follow the noise, and slowly the level: a lasting error of the model is no change."""
        noise = max(self.noise, self.floor)
        step = min(abs(value - self.newest), _CLIP * noise) / _DIFFERENCE
        self.noise += (step - self.noise) / _NOISE_STEPS
        self.centre += math.copysign(min(abs(distance), noise), distance) / _CENTRE_STEPS
        self.newest = value
