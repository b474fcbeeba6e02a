"""Ranks that report what a plain Ulysses job would measure, drawn from a seed. No torch, no clock.

Two kernel kinds, each with planted coefficients; every rank packs one sequence of documents a
step, one kernel call per document and kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    Coordinates,
    Features,
    KernelMoments,
    KernelTotals,
    Point,
    Report,
    StepTotals,
)

Float64 = NDArray[np.float64]

FORWARD = KernelKind(
    device="cpu",
    backend="sdpa",
    dtype="float32",
    head_dim=64,
    group_heads=1,
    direction="forward",
)
BACKWARD = replace(FORWARD, direction="backward")
# Seconds per tile, query token, key token, causal pair.
TRUTH: dict[KernelKind, Float64] = {
    FORWARD: np.array([2e-5, 3e-7, 1e-7, 4e-9]),
    BACKWARD: np.array([4e-5, 7e-7, 3e-7, 1e-8]),
}


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job whose reports are a pure function of (seed, step, rank)."""

    world_size: int = 4
    seed: int = 0
    tokens: int = 16384
    uneven: bool = True
    noise: float = 0.02
    slow: tuple[tuple[int, float], ...] = ()
    attempt: int = 0
    truth: tuple[tuple[KernelKind, tuple[float, ...]], ...] = ()

    def lengths(self, step: int, rank: int) -> NDArray[np.int64]:
        """Return the lengths of the documents that a rank's sequence holds."""
        if not self.uneven:
            return np.full(16, self.tokens // 16, dtype=np.int64)
        rng = np.random.default_rng((self.seed, step, rank))
        drawn = np.clip(rng.lognormal(6.5, 1.5, size=256).astype(np.int64), 16, self.tokens)
        ends = np.minimum(np.cumsum(drawn), self.tokens)
        lengths = np.diff(ends, prepend=0)
        return lengths[lengths > 0]

    def report(
        self, steps: Sequence[int], rank: int, *, sequence: int, policy_version: int = 0
    ) -> Report:
        """Return one rank's report of several steps."""
        kernels = {kind: self._calls(kind, steps, rank) for kind in TRUTH}
        return Report(
            schema=1,
            job="job",
            attempt=self.attempt,
            node=f"node{rank // 2}",
            agent=f"agent-{self.attempt}-{rank}",
            sequence=sequence,
            rank=rank,
            world_size=self.world_size,
            coordinates=Coordinates(dp=rank, cp=0, pool=rank // 2),
            moments=[_moments(kind, calls) for kind, calls in kernels.items()],
            steps=[self._totals(step, rank, policy_version) for step in steps],
        )

    def reports(
        self, steps: Sequence[int], *, policy_version: int = 0, batch: int = 1
    ) -> list[Report]:
        """Return all ranks' reports of these steps, ``batch`` steps in each, in step order."""
        groups = [steps[i : i + batch] for i in range(0, len(steps), batch)]
        return [
            self.report(group, rank, sequence=group[0], policy_version=policy_version)
            for group in groups
            for rank in range(self.world_size)
        ]

    def _calls(
        self, kind: KernelKind, steps: Sequence[int], rank: int
    ) -> list[tuple[Float64, Float64]]:
        """Return (features [n, F], seconds [n]) of each step's kernel calls."""
        truth = np.array(dict(self.truth).get(kind, tuple(TRUTH[kind])))
        speed = dict(self.slow).get(rank, 1.0)
        calls = []
        for step in steps:
            features = tile_features(0, self.lengths(step, rank)).astype(np.float64)
            rng = np.random.default_rng((self.seed, step, rank, len(kind.direction)))
            jitter = np.exp(self.noise * rng.standard_normal(len(features)))
            calls.append((features, features @ truth * jitter / speed))
        return calls

    def _totals(self, step: int, rank: int, policy_version: int) -> StepTotals:
        kernels = []
        for kind in TRUTH:
            ((features, seconds),) = self._calls(kind, [step], rank)
            totals = KernelTotals(kind=kind, features=_sum(features), seconds=float(seconds.sum()))
            kernels.append(totals)
        return StepTotals(
            step=step,
            policy_version=policy_version,
            seconds=1.5 * sum(kernel.seconds for kernel in kernels),
            kernels=kernels,
            home_features=kernels[0].features,
            sent_bytes=1000 + rank,
            wait_seconds=0.001 * rank,
        )


def _moments(kind: KernelKind, calls: list[tuple[Float64, Float64]]) -> KernelMoments:
    moments = Moments()
    points: list[Point] = []
    for features, seconds in calls:
        moments.add(features, seconds)
        points += [(*_row(x), float(y)) for x, y in zip(features[:8], seconds[:8], strict=True)]
    return KernelMoments(kind=kind, sums=moments.sums.tolist(), points=points)


def _sum(features: Float64) -> Features:
    return _row(features.sum(axis=0))


def _row(features: Float64) -> Features:
    tiles, queries, keys, pairs = (float(value) for value in features)
    return tiles, queries, keys, pairs
