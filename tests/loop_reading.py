"""What one rank reads off its own step, and the report that its agent makes of several.

Shapes: n kernel calls of each direction; F = 6 features; two directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    Coordinates,
    KernelMoments,
    KernelTotals,
    Report,
    StepTotals,
)
from tests.kernel_calls import as_features, as_points

Float64 = NDArray[np.float64]

# Fewer than the meter's: checking them is most of a report's cost.
_POINTS = 8


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One rank's step.

    Attributes:
        kinds: forward and backward.
        features: [n, F] of its kernel calls.
        seconds: [2, n] of them, forward and backward.
        step_s, wait_s: the step's duration, and the exposed wait for the exchange.
        home: [F] features of its work under plain Ulysses, one kv head.
    """

    step: int
    policy_version: int
    kinds: tuple[KernelKind, KernelKind]
    features: Float64
    seconds: Float64
    step_s: float
    wait_s: float
    home: Float64
    sent_bytes: int

    def totals(self) -> StepTotals:
        features = as_features(self.features.sum(axis=0))
        return StepTotals(
            step=self.step,
            policy_version=self.policy_version,
            seconds=self.step_s,
            kernels=[
                KernelTotals(kind=kind, features=features, seconds=float(seconds.sum()))
                for kind, seconds in zip(self.kinds, self.seconds, strict=True)
            ],
            home_features=as_features(self.home),
            home_pairs=[float(self.home[3])],
            sent_bytes=self.sent_bytes,
            wait_seconds=self.wait_s,
        )


@dataclass(kw_only=True)
class Sender:
    """One rank's agent: collects readings, numbers reports."""

    job: str
    attempt: int
    rank: int
    world_size: int
    coordinates: Coordinates
    batch_steps: int
    sequence: int = 0

    def __post_init__(self) -> None:
        self._pending: list[Reading] = []

    def add(self, reading: Reading) -> Report | None:
        """Take a step's reading; return the report that is due with it."""
        self._pending.append(reading)
        # Ranks flush out of step with each other.
        if (reading.step + self.rank) % self.batch_steps:
            return None
        readings, self._pending = self._pending, []
        self.sequence += 1
        return self._report(readings)

    def _report(self, readings: Sequence[Reading]) -> Report:
        return Report(
            schema=1,
            job=self.job,
            attempt=self.attempt,
            node=f"node{self.rank // 4}",
            agent=f"agent-{self.attempt}-{self.rank}",
            sequence=self.sequence,
            rank=self.rank,
            world_size=self.world_size,
            coordinates=self.coordinates,
            moments=_moments(readings),
            steps=[reading.totals() for reading in readings],
        )


def _moments(readings: Sequence[Reading]) -> list[KernelMoments]:
    kinds = dict.fromkeys(kind for reading in readings for kind in reading.kinds)
    found = []
    for kind in kinds:
        calls = [
            np.column_stack((reading.features, reading.seconds[reading.kinds.index(kind)]))
            for reading in readings
            if kind in reading.kinds
        ]
        rows = np.concatenate(calls)
        moments = Moments()
        moments.add(rows[:, :-1], rows[:, -1])
        # Evenly spread ones stand for the meter's uniform choice.
        chosen = rows[np.linspace(0, len(rows) - 1, min(_POINTS, len(rows))).astype(int)]
        points = as_points(chosen[:, :-1], chosen[:, -1])
        found.append(KernelMoments(kind=kind, sums=moments.sums.tolist(), points=points))
    return found
