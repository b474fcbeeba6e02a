"""A step while it runs: what is known of it so far, and each kernel kind's calls.

Shapes: F = 6 features; M micro-batches.
"""

import time

import numpy as np
from numpy.typing import NDArray

from libra.agent.guard import Guard
from libra.attention.cost import FEATURES, NUM_FEATURES
from libra.attention.layout import BatchLayout
from libra.balancer.wire import MAX_MICRO_BATCHES

_PAIRS = FEATURES.index("causal_pairs")


class OpenStep:
    """What is known of a step so far but its kernel calls."""

    __slots__ = (
        "began_s",
        "home_features",
        "home_pairs",
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

    def pairs_by_micro_batch(self) -> list[float]:
        """Return [M] causal pairs at home; micro-batches beyond the report's bound are left out.

        By number and not by turn, so that ranks which run them in another order compare.
        """
        shown = [number for number in self.home_pairs if 0 <= number < MAX_MICRO_BATCHES]
        return [self.home_pairs.get(number, 0.0) for number in range(max(shown, default=-1) + 1)]


class KernelCalls:
    """One kind's calls of the open step: rows not folded yet, and [F + 1] sums of the others.

    The guard knows the kind beyond the step.
    """

    __slots__ = ("cpu_s", "guard", "rows", "sums", "wall_s")

    def __init__(self) -> None:
        self.guard = Guard(NUM_FEATURES)
        self.rows: list[tuple[float, ...]] = []
        self.reset()

    def reset(self) -> None:
        self.sums: NDArray[np.float64] = np.zeros(NUM_FEATURES + 1)
        self.wall_s = 0.0
        self.cpu_s = 0.0
