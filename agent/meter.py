"""Measure a rank's attention: kernel seconds by features, exchange waits, and step totals.

Kept apart from the reporter so that a training script can read a step's totals with no balancer
anywhere. Host clocks tell the truth about kernels that run on the calling CPU thread only; calls
on other devices are refused and counted, since their launch times would pass for their cost.

Shapes: F = 4 features, in the order of ``libra.attention.cost.FEATURES``.
"""

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from libra.attention.layout import BatchLayout
from libra.attention.observer import KernelKind
from libra.balancer.moments import NUM_FEATURES, Moments
from libra.balancer.wire import (
    MAX_SECONDS,
    Features,
    KernelMoments,
    KernelTotals,
    Point,
    StepTotals,
)

logger = logging.getLogger(__name__)

Clock = Literal["wall", "cpu"]
Mark = tuple[float, float]

# Big enough that numpy's cost per call vanishes, small enough that a step's rest is quick.
FOLD_ROWS = 256
MAX_POINTS = 32
# As many kinds as one report may carry.
MAX_KINDS = 64


class StepMeter:
    """Watch one rank's attention; implements ``libra.attention.observer.Observer``.

    The training thread calls everything but ``take_moments``. A step closes when ``begin``
    brings another step number, or by ``end_step``.

    Args:
        clock: "wall", or "cpu" for the calling thread's CPU seconds where ranks share cores
            (run torch on one thread then: the seconds of its helpers are not seen).
        sink: called with the totals of every step that closes.
        seed: of the reservoirs of raw points.

    Attributes:
        kernel_wall_seconds: kernel seconds of the last closed step by the wall clock.
        kernel_cpu_seconds: the same by the thread's CPU clock; far less means that the kernels
            were kept waiting for a core, and the wall clock tells of the machine, not the work.
        dropped: observations and steps with figures that no report may carry.
    """

    def __init__(
        self,
        clock: Clock = "wall",
        *,
        sink: Callable[[StepTotals], None] | None = None,
        seed: int = 0,
    ) -> None:
        if clock not in ("wall", "cpu"):
            raise ValueError(f"clock={clock!r}: must be 'wall' or 'cpu'")
        self.clock = clock
        self.sink = sink
        self.kernel_wall_seconds = 0.0
        self.kernel_cpu_seconds = 0.0
        self.dropped = 0
        self._cpu = clock == "cpu"
        self._random = random.Random(seed)
        self._step: _Step | None = None
        self._told = False
        self._kinds: dict[KernelKind, _StepKernels] = {}
        # Whoever pops the samples owns them: a hand-over to the reporter without a lock, which
        # the training thread could wait for and a forked child could inherit held.
        self._samples: deque[dict[KernelKind, _Sample]] = deque(maxlen=1)

    def begin(self, layout: BatchLayout) -> None:
        """Open the layout's step, closing another, and count its micro-batch once."""
        step = self._step
        if step is None or step.number != layout.step:
            self.end_step()
            step = self._open(layout.step)
        step.policy_version = layout.policy_version
        if layout.micro_batch not in step.micro_batches:
            step.micro_batches.add(layout.micro_batch)
            step.home_features += layout.home_features

    def start(self) -> Mark:
        """Return a mark of now, on both clocks."""
        return time.perf_counter(), time.thread_time()

    def kernel(self, mark: Mark, kind: KernelKind, features: tuple[int, int, int, int]) -> None:
        """Note a kernel call from ``mark`` to now."""
        wall_s = time.perf_counter() - mark[0]
        cpu_s = time.thread_time() - mark[1]
        seconds = cpu_s if self._cpu else wall_s
        kernels = self._kinds.get(kind)
        if kernels is None:
            kernels = self._admit(kind)
        if kernels is None or not 0.0 <= seconds <= MAX_SECONDS:
            self.dropped += 1
            return
        kernels.wall_s += wall_s
        kernels.cpu_s += cpu_s
        kernels.rows.append((*features, seconds))
        if len(kernels.rows) >= FOLD_ROWS:
            self._fold(kind, kernels)

    def exchange(self, mark: Mark, sent_bytes: int) -> None:
        """Note an exposed wait from ``mark`` to now, always on the wall clock."""
        if self._step is not None:
            self._step.wait_s += time.perf_counter() - mark[0]
            self._step.sent_bytes += int(sent_bytes)

    def mismatch(self) -> None:
        """Note that the pool's ranks disagreed on a plan, so that the cell ran at home."""
        if self._step is not None:
            self._step.plan_mismatches += 1

    def end_step(self, seconds: float | None = None) -> StepTotals | None:
        """Close the open step, hand its totals to the sink and return them.

        Args:
            seconds: the step's duration; by default wall seconds since its first ``begin``.

        Returns:
            None when no step is open, or when a figure of it is beyond what a report may carry.
        """
        step, self._step = self._step, None
        if step is None:
            return None
        if seconds is None or not math.isfinite(seconds) or seconds < 0:
            seconds = time.perf_counter() - step.began_s
        totals = self._totals(step, float(seconds))
        figures = [totals.seconds, totals.wait_seconds, *(k.seconds for k in totals.kernels)]
        if max(figures) > MAX_SECONDS:
            self.dropped += 1
            return None
        if self.sink is not None:
            self.sink(totals)
        return totals

    def take_moments(self) -> list[KernelMoments]:
        """Return and forget what is folded so far; the one method for another thread."""
        try:
            samples = self._samples.pop()
        except IndexError:  # nothing new, or the training thread is folding: next time
            return []
        return [
            KernelMoments(kind=kind, sums=sample.moments.sums.tolist(), points=sample.points)
            for kind, sample in samples.items()
        ]

    def _admit(self, kind: KernelKind) -> "_StepKernels | None":
        """Return a place for a new kind's calls; None if they cannot be told of honestly."""
        if kind.device != "cpu" and not self._told:
            self._told = True
            logger.warning(
                "Kernels on %s run after their call returns, and the %s clock cannot time them: "
                "they are not reported.",
                kind.device,
                self.clock,
            )
        if kind.device != "cpu" or len(self._kinds) == MAX_KINDS:
            return None
        return self._kinds.setdefault(kind, _StepKernels())

    def _open(self, number: int) -> "_Step":
        for kind, kernels in self._kinds.items():
            self._fold(kind, kernels)
            kernels.reset()
        self._step = _Step(number)
        return self._step

    def _totals(self, step: "_Step", seconds: float) -> StepTotals:
        for kind, kernels in self._kinds.items():
            self._fold(kind, kernels)
        self.kernel_wall_seconds = sum(kernels.wall_s for kernels in self._kinds.values())
        self.kernel_cpu_seconds = sum(kernels.cpu_s for kernels in self._kinds.values())
        return StepTotals(
            step=step.number,
            policy_version=step.policy_version,
            seconds=seconds,
            kernels=[
                KernelTotals(
                    kind=kind, features=_features(kernels.sums), seconds=float(kernels.sums[-1])
                )
                for kind, kernels in self._kinds.items()
                if kernels.sums.any()
            ],
            home_features=_features(step.home_features),
            sent_bytes=step.sent_bytes,
            wait_seconds=step.wait_s,
            plan_mismatches=step.plan_mismatches,
        )

    def _fold(self, kind: KernelKind, kernels: "_StepKernels") -> None:
        """Move a kind's pending rows into the step's sums and the samples."""
        if not kernels.rows:
            return
        rows = np.array(kernels.rows, dtype=np.float64)
        kernels.sums += rows.sum(axis=0)
        try:
            samples = self._samples.pop()
        except IndexError:
            samples = {}
        samples.setdefault(kind, _Sample()).add(rows, self._random)
        self._samples.append(samples)
        kernels.rows.clear()


class _Step:
    """The open step."""

    __slots__ = (
        "began_s",
        "home_features",
        "micro_batches",
        "number",
        "plan_mismatches",
        "policy_version",
        "sent_bytes",
        "wait_s",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.began_s = time.perf_counter()
        self.policy_version = 0
        self.micro_batches: set[int] = set()
        self.home_features: NDArray[np.float64] = np.zeros(NUM_FEATURES)
        self.sent_bytes = 0
        self.wait_s = 0.0
        self.plan_mismatches = 0


class _StepKernels:
    """One kind's calls of the open step: rows not folded yet, and [F + 1] sums of the others."""

    __slots__ = ("cpu_s", "rows", "sums", "wall_s")

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.reset()

    def reset(self) -> None:
        self.sums: NDArray[np.float64] = np.zeros(NUM_FEATURES + 1)
        self.wall_s = 0.0
        self.cpu_s = 0.0


class _Sample:
    """One kind's calls since the last report: moment sums and a uniform choice of raw points."""

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
                self.points.append(tuple(point))
            elif (chosen := int(rng.random() * self.seen)) < MAX_POINTS:
                self.points[chosen] = tuple(point)


def _features(values: NDArray[np.float64] | NDArray[np.int64]) -> Features:
    tiles, query_tokens, key_tokens, causal_pairs = (float(v) for v in values[:NUM_FEATURES])
    return tiles, query_tokens, key_tokens, causal_pairs
