"""Kernel calls on their way into a report: moment sums and a few raw points of each kind.

Shapes: F = 6 features; n rows of [F] features and seconds, [n, F + 1].
"""

import random
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra.agent.guard import Guard
from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import KernelMoments, Point

MAX_POINTS = 32
# As many kinds as one report may carry.
MAX_KINDS = 64


class Samples:
    """Gather sound calls since the last report; one thread adds, another takes.

    Args:
        seed: of the reservoirs of raw points.

    Attributes:
        set_aside: calls that ``Guard`` kept out.
        dropped: calls that it failed at.
    """

    def __init__(self, seed: int) -> None:
        self.set_aside = 0
        self.dropped = 0
        self._guards: dict[KernelKind, Guard] = {}
        self._random = random.Random(seed)
        # Whoever pops the samples owns them: a hand-over to the reporter without a lock, which
        # the training thread could wait for and a forked child could inherit held.
        self._samples: deque[dict[KernelKind, _Sample]] = deque(maxlen=1)

    def admit(self, kind: KernelKind) -> bool:
        """Make room for calls of a kind; return whether there is any."""
        if kind not in self._guards and len(self._guards) < MAX_KINDS:
            self._guards[kind] = Guard(NUM_FEATURES)
        return kind in self._guards

    def add(self, kind: KernelKind, rows: NDArray[np.float64]) -> None:
        """Add the sound ones of rows [n, F + 1] of a kind that was admitted."""
        guard = self._guards[kind]
        before = guard.set_aside
        try:
            sound = guard.sift(rows)
        except Exception:
            # Whatever numbers do to the arithmetic, it must not reach the training loop.
            self.dropped += len(rows)
            return
        self.set_aside += guard.set_aside - before
        if len(sound):
            self._gather(kind, sound)

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

    def _gather(self, kind: KernelKind, rows: NDArray[np.float64]) -> None:
        try:
            samples = self._samples.pop()
        except IndexError:
            samples = {}
        samples.setdefault(kind, _Sample()).add(rows, self._random)
        self._samples.append(samples)


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
