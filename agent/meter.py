"""Measure a rank's attention: kernel seconds by features, exchange waits, and step totals.

Kept apart from the reporter so that a training script can read a step's totals with no balancer
anywhere. Host clocks tell the truth about kernels that run on the calling CPU thread only. On CUDA
devices events are read when the device has come by them, so a step is told of a little later;
calls on other devices are left out and counted, since launch times would pass for their cost.

Shapes: F = 6 features, in the order of ``libra.attention.cost.FEATURES``; M micro-batches.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from libra.agent.device_clock import device_clock
from libra.agent.harmless import harmless
from libra.agent.open_step import KernelCalls, OpenStep
from libra.agent.samples import Samples
from libra.agent.unread import Unread
from libra.agent.waves import WaveMeter
from libra.attention.layout import BatchLayout
from libra.attention.observer import KernelKind, Traffic
from libra.balancer.wire import (
    MAX_SECONDS,
    KernelMoments,
    StepTotals,
    WaveMoments,
)

logger = logging.getLogger(__name__)

Clock = Literal["wall", "cpu"]
# Of the wall and the thread's CPU clock, and in a device's stream where kernels run on one.
Mark = tuple[float, float, Any]

# Big enough that numpy's cost per call vanishes, small enough that a step's rest is quick.
FOLD_ROWS = 256
_NO_TOTALS = cast("StepTotals | None", None)


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
        kernel_wall_seconds: kernel seconds of the last step told of, by the wall or device clock.
        kernel_cpu_seconds: the same by the thread's CPU clock; far less means that the kernels
            were kept waiting for a core, and the wall clock tells of the machine, not the work.
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
        self.failed = False
        self._cpu = clock == "cpu"
        self._step: OpenStep | None = None
        self._told = False
        self._dropped = 0
        # Of the open step; where none is open, of calls that only the moments hear of.
        self._calls: dict[KernelKind, KernelCalls] = {}
        self._unread: Unread | None = None
        self._samples = Samples(seed)
        self._waves = WaveMeter()

    @property
    def dropped(self) -> int:
        """Observations and steps that no report tells of: with figures that none may carry, or
        that were not read.
        """
        unread = 0 if self._unread is None else self._unread.dropped
        return self._dropped + self._samples.dropped + unread

    @property
    def set_aside(self) -> int:
        """Kernel calls that were kept out of the moments."""
        return self._samples.set_aside

    @harmless(None)
    def begin(self, layout: BatchLayout) -> None:
        """Open the layout's step, closing another, and count its micro-batch once."""
        step = self._step
        if step is None or step.number != layout.step:
            self.end_step()
            step = self._open(layout.step)
        step.add(layout)

    @harmless((0.0, 0.0, None))
    def start(self) -> Mark:
        """Return a mark of now, on all clocks."""
        on_device = None if self._unread is None else self._unread.clock.mark()
        return time.perf_counter(), time.thread_time(), on_device

    @harmless(None)
    def kernel(self, mark: Mark, kind: KernelKind, features: Sequence[int]) -> None:
        """Note a kernel call from ``mark`` to now."""
        wall_s = time.perf_counter() - mark[0]
        cpu_s = time.thread_time() - mark[1]
        kernels = self._calls.get(kind)
        if kernels is None:
            kernels = self._admit(kind)
        if kernels is None:
            self._dropped += 1
        elif self._unread is None or kind.device == "cpu":
            seconds = cpu_s if self._cpu else wall_s
            kernels.cpu_s += cpu_s
            self._note(kind, kernels, features, seconds, wall_s=wall_s)
        else:
            marks = mark[2], self._unread.clock.mark()
            self._unread.add(self._step, marks, partial(self._note, kind, kernels, features))

    @harmless(None)
    def exchange(self, issued: Mark, mark: Mark, traffic: Traffic) -> None:
        """Note a wave that took from ``issued`` to now and was waited for from ``mark`` on.

        The wait is the exposed part of the exchange, by the wall or the device's clock.
        """
        now_s, step = time.perf_counter(), self._step
        if step is not None:
            step.sent_bytes += traffic.sent_bytes
        if traffic.device != "cpu" and self._unread is not None:
            marks = issued[2], mark[2], self._unread.clock.mark()
            self._unread.add(step, marks, partial(self._read_wave, step, traffic))
            return
        wait_s = now_s - mark[0]
        if step is not None:
            step.wait_s += wait_s
        # Other devices' waits return when they are queued.
        if traffic.device == "cpu":
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
            None when no step is open, when a figure of it is beyond what a report may carry, or
            when a device has yet to come by its last kernel: the sink gets it then.
        """
        step, self._step, self._calls = self._step, None, {}
        if step is None:
            return None
        if seconds is None or not math.isfinite(seconds) or seconds < 0:
            seconds = time.perf_counter() - step.began_s
        if self._unread is not None and self._unread.close(step, float(seconds)):
            return None
        return self._tell(step, float(seconds))

    @harmless(None)
    def settle(self) -> None:
        """Take what a device has come by since, and tell of the steps that waited for it."""
        if self._unread is not None:
            self._unread.settle()

    def take_moments(self) -> list[KernelMoments]:
        """Return and forget what is folded so far; for another thread."""
        return self._samples.take()

    def take_waves(self) -> list[WaveMoments]:
        """Return and forget the exposed waves folded so far; for another thread."""
        return self._waves.take()

    def _admit(self, kind: KernelKind) -> KernelCalls | None:
        """Return a place for a kind's calls of this step; None if they cannot be told of."""
        if kind.device != "cpu" and self._unread is None:
            self._watch(kind.device)
        if kind.device != "cpu" and self._unread is None:
            return None
        return self._calls.setdefault(kind, KernelCalls()) if self._samples.admit(kind) else None

    def _watch(self, device: str) -> None:
        """Read a device's own clock from now on, if it has one that can be read."""
        clock = device_clock(device)
        if clock is not None:
            self._unread = Unread(clock, self._tell)
        elif not self._told:
            self._told = True
            logger.warning(
                "Kernels on %s run after their call returns, and nothing here can time them: "
                "they are not reported.",
                device,
            )

    def _read_wave(
        self, step: OpenStep | None, traffic: Traffic, seconds: float, wait_s: float
    ) -> None:
        if step is not None:
            step.wait_s += wait_s
        self._waves.note(traffic, wait_s=wait_s, seconds=seconds)

    def _note(
        self,
        kind: KernelKind,
        kernels: KernelCalls,
        features: Sequence[int],
        seconds: float,
        *,
        wall_s: float | None = None,
    ) -> None:
        """Note a call that took so long, by the wall clock where that is not the one asked for."""
        if not 0.0 <= seconds <= MAX_SECONDS:
            self._dropped += 1
            return
        kernels.wall_s += seconds if wall_s is None else wall_s
        kernels.rows.append((*features, seconds))
        if len(kernels.rows) >= FOLD_ROWS:
            self._fold(kind, kernels)

    def _open(self, number: int) -> OpenStep:
        self.settle()
        for kind, kernels in self._calls.items():
            self._fold(kind, kernels)
        self._step = OpenStep(number)
        self._calls = self._step.calls
        return self._step

    def _tell(self, step: OpenStep, seconds: float) -> StepTotals | None:
        """Hand a step's totals to the sink and return them; None if they cannot be told of."""
        if not step.is_whole:
            return None
        totals = self._totals(step, seconds)
        figures = [totals.seconds, totals.wait_seconds, *(k.seconds for k in totals.kernels)]
        if max(figures) > MAX_SECONDS:
            self._dropped += 1
            return None
        if self.sink is not None:
            self.sink(totals)
        return totals

    def _totals(self, step: OpenStep, seconds: float) -> StepTotals:
        for kind, kernels in step.calls.items():
            self._fold(kind, kernels)
        self._waves.end_step()
        self.kernel_wall_seconds = sum(kernels.wall_s for kernels in step.calls.values())
        self.kernel_cpu_seconds = sum(kernels.cpu_s for kernels in step.calls.values())
        return step.totals(seconds)

    def _fold(self, kind: KernelKind, kernels: KernelCalls) -> None:
        """Move a kind's pending rows into the step's sums and the samples."""
        if not kernels.rows:
            return
        rows = np.array(kernels.rows, dtype=np.float64)
        kernels.sums += rows.sum(axis=0)
        kernels.rows.clear()
        self._samples.add(kind, rows)
