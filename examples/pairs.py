"""A pair: one batch trained on twice from the same weights, under plain Ulysses and under Libra.

The training job writes one JSON line per pair, the demo reads them while it runs.
"""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

Clock = Literal["wall", "cpu"]

# Kernels that take this much more wall than CPU time were kept waiting for a core.
_MOST_WAITED = 1.05
# Both runs of a pair compute the same attention; cut tiles cost a few per cent more. Where their
# kernel totals lie further apart, the machine changed its speed between the runs.
_MOST_DRIFT = 1.1
Side = Literal["baseline", "libra"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over a step's batches; lists have one number per rank.

    ``step_seconds`` and ``kernel_seconds`` are by the job's clock, ``wait_seconds`` by the wall.
    """

    step_seconds: float
    kernel_seconds: list[float]
    wait_seconds: list[float]
    kernel_wall_seconds: list[float]
    kernel_cpu_seconds: list[float]
    sent_bytes: int

    @property
    def skew(self) -> float:
        """Slowest rank's kernel seconds over the mean; 1 is perfect."""
        return max(self.kernel_seconds) / _mean(self.kernel_seconds)

    @property
    def surplus_seconds(self) -> float:
        """What the slowest rank would save if kernels were spread evenly."""
        return max(self.kernel_seconds) - _mean(self.kernel_seconds)

    @property
    def disturbance(self) -> float:
        """Largest wall over CPU seconds of a rank's kernels: above 1 they waited for a core."""
        times = zip(self.kernel_wall_seconds, self.kernel_cpu_seconds, strict=True)
        return max((wall / cpu for wall, cpu in times if cpu > 0), default=1.0)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Both runs of a step, and how far apart their results are.

    ``warmup`` marks pairs before the first published policy took effect: two runs of the same
    plan. ``loss_difference`` is relative; ``gradient_difference`` is the largest difference
    over the largest value of a parameter's gradient, worst over parameters.
    """

    step: int
    warmup: bool
    policy_version: int
    first: Side
    loss: float
    loss_difference: float
    gradient_difference: float
    baseline: Run
    libra: Run

    @property
    def drift(self) -> float:
        """Kernel seconds of all ranks, the slower run's over the faster's."""
        totals = sum(self.libra.kernel_seconds), sum(self.baseline.kernel_seconds)
        return max(totals) / min(totals)

    def steady(self, clock: Clock) -> bool:
        """Did the machine treat both runs alike? Judged by total work, not by how it is spread."""
        runs = (self.baseline, self.libra)
        waited = clock == "wall" and max(run.disturbance for run in runs) > _MOST_WAITED
        return not waited and self.drift <= _MOST_DRIFT


def append_pair(path: Path, pair: Pair) -> None:
    """Append a pair's line by a single write, so that a killed job leaves whole lines."""
    line = msgspec.json.encode(pair) + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file so far; a line without its end is still being written."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=Pair) for line in lines if line.endswith(b"\n")]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
