"""Kernel calls on their way into a report: moment sums and a few raw points of each kind.

Shapes: F = 6 features; n rows of [F] features and seconds, [n, F + 1].
"""

import random
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import KernelMoments, Point

MAX_POINTS = 32


class Samples:
    """Gather calls since the last report; one thread adds, another takes.

    Args:
        seed: of the reservoirs of raw points.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # Whoever pops the samples owns them: a hand-over to the reporter without a lock, which
        # the training thread could wait for and a forked child could inherit held.
        self._samples: deque[dict[KernelKind, _Sample]] = deque(maxlen=1)

    def add(self, kind: KernelKind, rows: NDArray[np.float64]) -> None:
        """Add rows [n, F + 1]."""
        try:
            samples = self._samples.pop()
        except IndexError:
            samples = {}
        samples.setdefault(kind, _Sample()).add(rows, self._random)
        self._samples.append(samples)

    def take(self) -> list[KernelMoments]:
        """Return and forget what there is; nothing while the other thread adds."""
        try:
            samples = self._samples.pop()
        except IndexError:
            return []
        return [
            KernelMoments(kind=kind, sums=sample.moments.sums.tolist(), points=sample.points)
            for kind, sample in samples.items()
        ]


class _Sample:
    """One kind's calls: moment sums and a uniform choice of raw points."""

    __slots__ = ("moments", "points", "seen")

    def __init__(self) -> None:
        self.moments = Moments()
        self.points: list[Point] = []
        self.seen = 0

    def add(self, rows: NDArray[np.float64], rng: random.Random) -> None:
        """Add rows [n, F + 1]; the points are chosen by algorithm R."""
        self.moments.add(rows[:, :NUM_FEATURES], rows[:, NUM_FEATURES])
        for point in rows.tolist():
            self.seen += 1
            if len(self.points) < MAX_POINTS:
                self.points.append(_point(point))
            elif (chosen := int(rng.random() * self.seen)) < MAX_POINTS:
                self.points[chosen] = _point(point)


def _point(values: Sequence[float]) -> Point:
    one, two, three, four, five, six, seconds = values
    return one, two, three, four, five, six, seconds
