"""A step while it runs: what is known of it so far, its kernel calls by kind included.

Shapes: F = 6 features; M micro-batches.
"""

import time

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import FEATURES, NUM_FEATURES
from libra.attention.layout import BatchLayout
from libra.attention.observer import KernelKind
from libra.balancer.wire import MAX_MICRO_BATCHES, Features, KernelTotals, StepTotals

_PAIRS = FEATURES.index("causal_pairs")


class OpenStep:
    """What is known of a step so far.

    Attributes:
        unread: readings of a device's clock that are to come.
        is_whole: has no reading been left out?
    """

    __slots__ = (
        "began_s",
        "calls",
        "home_features",
        "home_pairs",
        "is_whole",
        "number",
        "plan_mismatches",
        "policy_version",
        "sent_bytes",
        "unread",
        "wait_s",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.began_s = time.perf_counter()
        self.policy_version = 0
        self.calls: dict[KernelKind, KernelCalls] = {}
        self.unread = 0
        self.is_whole = True
        self.home_pairs: dict[int, float] = {}
        self.home_features: NDArray[np.float64] = np.zeros(NUM_FEATURES)
        self.sent_bytes = 0
        self.wait_s = 0.0
        self.plan_mismatches = 0

    def add(self, layout: BatchLayout) -> None:
        """Count the layout's micro-batch, once."""
        self.policy_version = layout.policy_version
        if layout.micro_batch not in self.home_pairs:
            features = layout.home_features
            self.home_features += features
            self.home_pairs[layout.micro_batch] = float(features[_PAIRS])

    def totals(self, seconds: float) -> StepTotals:
        """Return what is reported of a step of this duration, whose rows are all folded."""
        return StepTotals(
            step=self.number,
            policy_version=self.policy_version,
            seconds=seconds,
            kernels=[
                KernelTotals(kind=kind, features=_features(own.sums), seconds=float(own.sums[-1]))
                for kind, own in self.calls.items()
                if own.sums.any()
            ],
            home_features=_features(self.home_features),
            home_pairs=self.pairs_by_micro_batch(),
            sent_bytes=self.sent_bytes,
            wait_seconds=self.wait_s,
            plan_mismatches=self.plan_mismatches,
        )

    def pairs_by_micro_batch(self) -> list[float]:
        """Return [M] causal pairs at home; micro-batches beyond the report's bound are left out.

        By number and not by turn, so that ranks which run them in another order compare.
        """
        shown = [number for number in self.home_pairs if 0 <= number < MAX_MICRO_BATCHES]
        return [self.home_pairs.get(number, 0.0) for number in range(max(shown, default=-1) + 1)]


class KernelCalls:
    """One kind's calls of a step: rows not folded yet, and [F + 1] sums of the others."""

    __slots__ = ("cpu_s", "rows", "sums", "wall_s")

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.sums: NDArray[np.float64] = np.zeros(NUM_FEATURES + 1)
        self.wall_s = 0.0
        self.cpu_s = 0.0


def _features(values: NDArray[np.float64] | NDArray[np.int64]) -> Features:
    one, two, three, four, five, six = values[:NUM_FEATURES].tolist()
    return float(one), float(two), float(three), float(four), float(five), float(six)
