"""Kernel calls on their way into a report: moment sums and a few raw points of each kind.

Telling sound calls from others takes longer than noting them, so the thread that reports does it,
for all that came since; the training thread steps in only where nobody comes for too long.

Shapes: F = 6 features; n rows of [F] features and seconds, [n, F + 1].
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra.agent.guard import Guard
from libra.attention.cost import NUM_FEATURES
from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import KernelMoments, Point

Float64 = NDArray[np.float64]

MAX_POINTS = 32
# As many kinds as one report may carry.
MAX_KINDS = 64
# Batches that wait to be judged: some seconds of steps, while no report is due.
MAX_WAITING = 64
# What changes within a batch is judged as one: fewer rows follow a change more closely.
JUDGED_ROWS = 256


class Samples:
    """Gather sound calls since the last report; one thread adds, another takes.

    Args:
        seed: of the choice of raw points.
    """

    def __init__(self, seed: int) -> None:
        self._kinds: set[KernelKind] = set()
        self._waiting: deque[tuple[KernelKind, Float64]] = deque()
        self._overrun = 0
        self._judge = _Judge(seed)
        # Whoever pops the judge owns it: a hand-over without a lock, which the training thread
        # could wait for and a forked child could inherit held.
        self._free = deque([self._judge], maxlen=1)

    @property
    def set_aside(self) -> int:
        """Calls that ``Guard`` kept out, of those judged so far."""
        return self._judge.set_aside

    @property
    def dropped(self) -> int:
        """Calls that it failed at, or that found too many waiting."""
        return self._judge.failed_at + self._overrun

    def admit(self, kind: KernelKind) -> bool:
        """Make room for calls of a kind; return whether there is any."""
        if kind not in self._kinds and len(self._kinds) < MAX_KINDS:
            self._kinds.add(kind)
        return kind in self._kinds

    def add(self, kind: KernelKind, rows: Float64) -> None:
        """Add rows [n, F + 1] of a kind that was admitted."""
        if len(self._waiting) >= MAX_WAITING:
            self._work_off()
        if len(self._waiting) >= MAX_WAITING:
            self._overrun += len(rows)
        else:
            self._waiting.append((kind, rows))

    def take(self) -> list[KernelMoments]:
        """Return and forget what there is; nothing while the other thread judges."""
        return self._work_off(take=True)

    def _work_off(self, *, take: bool = False) -> list[KernelMoments]:
        """Judge what waits, unless the other thread does, and ``take`` what came of it."""
        try:
            judge = self._free.pop()
        except IndexError:
            return []
        try:
            # No more than there is now: the other thread may add without end.
            batches = [self._waiting.popleft() for _ in range(len(self._waiting))]
            judge.hear(batches)
            return judge.take() if take else []
        finally:
            self._free.append(judge)


class _Judge:
    """What is known of each kind, and what of its calls is to be reported.

    Attributes:
        set_aside: calls that guards kept out.
        failed_at: calls that they failed at.
    """

    def __init__(self, seed: int) -> None:
        self.set_aside = 0
        self.failed_at = 0
        self._guards: dict[KernelKind, Guard] = {}
        self._samples: dict[KernelKind, _Sample] = {}
        self._random = np.random.default_rng(seed)

    def hear(self, batches: Sequence[tuple[KernelKind, Float64]]) -> None:
        """Add the sound ones of each kind's rows [n, F + 1]."""
        by_kind: dict[KernelKind, list[Float64]] = {}
        for kind, rows in batches:
            by_kind.setdefault(kind, []).append(rows)
        for kind, several in by_kind.items():
            rows = np.concatenate(several)
            for begin in range(0, len(rows), JUDGED_ROWS):
                self._sift(kind, rows[begin : begin + JUDGED_ROWS])

    def take(self) -> list[KernelMoments]:
        """Return and forget the samples."""
        samples, self._samples = self._samples, {}
        return [
            KernelMoments(kind=kind, sums=sample.moments.sums.tolist(), points=sample.points)
            for kind, sample in samples.items()
        ]

    def _sift(self, kind: KernelKind, rows: Float64) -> None:
        guard = self._guards.get(kind)
        if guard is None:
            guard = self._guards[kind] = Guard(NUM_FEATURES)
        before = guard.set_aside
        try:
            sound = guard.sift(rows)
        except Exception:
            # Whatever numbers do to the arithmetic, it must not reach the training loop.
            self.failed_at += len(rows)
            return
        self.set_aside += guard.set_aside - before
        if len(sound):
            self._samples.setdefault(kind, _Sample()).add(sound, self._random)


class _Sample:
    """One kind's calls: moment sums and a uniform choice of raw points."""

    __slots__ = ("moments", "points", "seen")

    def __init__(self) -> None:
        self.moments = Moments()
        self.points: list[Point] = []
        self.seen = 0

    def add(self, rows: Float64, rng: np.random.Generator) -> None:
        """Add rows [n, F + 1]; the points are chosen by algorithm R."""
        self.moments.add(rows[:, :NUM_FEATURES], rows[:, NUM_FEATURES])
        room = MAX_POINTS - len(self.points)
        self.points += map(_point, rows[:room].tolist())
        later = rows[room:]
        turns = self.seen + len(rows) - len(later) + 1 + np.arange(len(later))
        chosen = (rng.random(len(later)) * turns).astype(np.int64)
        for index in np.flatnonzero(chosen < MAX_POINTS).tolist():
            self.points[chosen[index]] = _point(later[index].tolist())
        self.seen += len(rows)


def _point(values: Sequence[float]) -> Point:
    one, two, three, four, five, six, seconds = values
    return one, two, three, four, five, six, seconds
