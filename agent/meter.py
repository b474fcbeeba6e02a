"""Measure a rank's attention: kernel seconds by features, exchange waits, and step totals.

Kept apart from the reporter so that a training script can read a step's totals with no balancer
anywhere. Host clocks tell the truth about kernels that run on the calling CPU thread only; calls
on other devices are refused and counted, since their launch times would pass for their cost.

Shapes: F = 6 features, in the order of ``libra.attention.cost.FEATURES``; M micro-batches.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from libra.agent.harmless import harmless
from libra.agent.open_step import KernelCalls, OpenStep
from libra.agent.samples import Samples
from libra.agent.waves import WaveMeter
from libra.attention.cost import NUM_FEATURES
from libra.attention.layout import BatchLayout
from libra.attention.observer import KernelKind, Traffic
from libra.balancer.wire import (
    MAX_SECONDS,
    Features,
    KernelMoments,
    KernelTotals,
    StepTotals,
    WaveMoments,
)

logger = logging.getLogger(__name__)

Clock = Literal["wall", "cpu"]
Mark = tuple[float, float]

# Big enough that numpy's cost per call vanishes, small enough that a step's rest is quick.
FOLD_ROWS = 256
_NO_TOTALS = cast("StepTotals | None", None)
# As many kinds as one report may carry.
MAX_KINDS = 64


class StepMeter:
    """Watch one rank's attention; implements ``libra.attention.observer.Observer``.

    The training thread calls everything but ``take_moments`` and ``take_waves``. Totals of a step
    hold all its calls; readings that are no measure of a kernel's cost are kept out of the moments
    alone, by ``Guard``. A step closes when ``begin``
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
        set_aside: kernel calls that were kept out of the moments.
        failed: an exception of its own switched it off; no method raises one.
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
        self.set_aside = 0
        self.failed = False
        self._cpu = clock == "cpu"
        self._step: OpenStep | None = None
        self._told = False
        self._kinds: dict[KernelKind, KernelCalls] = {}
        self._samples = Samples(seed)
        self._waves = WaveMeter()

    @harmless(None)
    def begin(self, layout: BatchLayout) -> None:
        """Open the layout's step, closing another, and count its micro-batch once."""
        step = self._step
        if step is None or step.number != layout.step:
            self.end_step()
            step = self._open(layout.step)
        step.add(layout)

    @harmless((0.0, 0.0))
    def start(self) -> Mark:
        """Return a mark of now, on both clocks."""
        return time.perf_counter(), time.thread_time()

    @harmless(None)
    def kernel(self, mark: Mark, kind: KernelKind, features: Sequence[int]) -> None:
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

    @harmless(None)
    def exchange(self, issued: Mark, mark: Mark, traffic: Traffic) -> None:
        """Note a wave that took from ``issued`` to now and was waited for from ``mark`` on.

        The wait is the exposed part of the exchange. Always on the wall clock.
        """
        now_s = time.perf_counter()
        wait_s = now_s - mark[0]
        if self._step is not None:
            self._step.wait_s += wait_s
            self._step.sent_bytes += traffic.sent_bytes
        self._waves.note(traffic, wait_s=wait_s, seconds=now_s - issued[0])

    @harmless(None)
    def mismatch(self) -> None:
        """Note that the pool's ranks disagreed on a plan, so that the cell ran at home."""
        if self._step is not None:
            self._step.plan_mismatches += 1

    @harmless(_NO_TOTALS)
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
        """Return and forget what is folded so far; for another thread."""
        return self._samples.take()

    def take_waves(self) -> list[WaveMoments]:
        """Return and forget the exposed waves folded so far; for another thread."""
        return self._waves.take()

    def _admit(self, kind: KernelKind) -> KernelCalls | None:
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
        return self._kinds.setdefault(kind, KernelCalls())

    def _open(self, number: int) -> OpenStep:
        for kind, kernels in self._kinds.items():
            self._fold(kind, kernels)
            kernels.reset()
        self._step = OpenStep(number)
        return self._step

    def _totals(self, step: OpenStep, seconds: float) -> StepTotals:
        for kind, kernels in self._kinds.items():
            self._fold(kind, kernels)
        self._waves.end_step()
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
            home_pairs=step.pairs_by_micro_batch(),
            sent_bytes=step.sent_bytes,
            wait_seconds=step.wait_s,
            plan_mismatches=step.plan_mismatches,
        )

    def _fold(self, kind: KernelKind, kernels: KernelCalls) -> None:
        """Move a kind's pending rows into the step's sums and the samples."""
        if not kernels.rows:
            return
        rows = np.array(kernels.rows, dtype=np.float64)
        kernels.sums += rows.sum(axis=0)
        kernels.rows.clear()
        before = kernels.guard.set_aside
        try:
            sound = kernels.guard.sift(rows)
        except Exception:
            # Whatever numbers do to the arithmetic, it must not reach the training loop.
            self.dropped += len(rows)
            return
        self.set_aside += kernels.guard.set_aside - before
        if len(sound):
            self._samples.add(kind, sound)


def _features(values: NDArray[np.float64] | NDArray[np.int64]) -> Features:
    one, two, three, four, five, six = values[:NUM_FEATURES].tolist()
    return float(one), float(two), float(three), float(four), float(five), float(six)
