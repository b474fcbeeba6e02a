"""Ranks that report what a plain Ulysses job would measure, drawn from a seed. No torch, no clock.

Two kernel kinds, each with planted coefficients; every rank packs one sequence of documents a
step, one kernel call per document and kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.observer import KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    Coordinates,
    KernelMoments,
    Point,
    Report,
    StepTotals,
)
from tests.kernel_calls import as_points, kernel_totals

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
# Seconds per feature.
TRUTH: dict[KernelKind, Float64] = {
    FORWARD: np.array([2e-5, 3e-7, 1e-7, 4e-9, 1e-6, 1e-7]),
    BACKWARD: np.array([4e-5, 7e-7, 3e-7, 1e-8, 2e-6, 2e-7]),
}


# What a step takes besides the slowest rank's kernels, give or take.
OTHER_SECONDS, OTHER_NOISE = 0.5, 0.01
REPLAY_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Lie:
    """What one rank says of its kernels from a step on; of its steps' duration it says the truth.

    "random" seconds have nothing to do with the work, "frozen" ones are those of the first step,
    "replayed" figures are those of the ``REPLAY_STEPS`` before, over and over, and "slow" ones are
    those of half the speed.
    """

    rank: int
    kind: Literal["random", "thousandfold", "frozen", "replayed", "slow"]
    begin: int = 0


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job whose reports are a pure function of (seed, step, rank).

    ``slow`` ranks are so from step ``slow_from`` on, ``throttled`` multiplies all seconds from
    step ``throttled_from`` on.
    """

    world_size: int = 4
    seed: int = 0
    tokens: int = 16384
    uneven: bool = True
    noise: float = 0.02
    slow: tuple[tuple[int, float], ...] = ()
    slow_from: int = 0
    throttled: float = 1.0
    throttled_from: int = 0
    lie: Lie | None = None
    attempt: int = 0
    truth: tuple[tuple[KernelKind, tuple[float, ...]], ...] = ()

    def lengths(self, step: int, rank: int) -> NDArray[np.int64]:
        """Return the lengths of the documents that a rank's sequence holds."""
        if not self.uneven:
            return np.full(16, self.tokens // 16, dtype=np.int64)
        rng = np.random.default_rng((self.seed, abs(step), rank))
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

    def kernel_seconds(self, step: int, rank: int) -> float:
        """Return how long the rank really computed."""
        return float(sum(_true_calls(self, kind, step, rank)[1].sum() for kind in TRUTH))

    def _calls(
        self, kind: KernelKind, steps: Sequence[int], rank: int
    ) -> list[tuple[Float64, Float64]]:
        """Return (features [n, F], seconds [n]) of each step's kernel calls, as reported."""
        return [self._told(kind, step, rank) for step in steps]

    def _told(self, kind: KernelKind, step: int, rank: int) -> tuple[Float64, Float64]:
        lie = self.lie
        features, seconds = _true_calls(self, kind, step, rank)
        if lie is None or rank != lie.rank or step < lie.begin:
            return features, seconds
        if lie.kind == "replayed":
            again = lie.begin - REPLAY_STEPS + (step - lie.begin) % REPLAY_STEPS
            return _true_calls(self, kind, again, rank)
        if lie.kind == "frozen":
            frozen = _true_calls(self, kind, lie.begin, rank)[1].sum()
            return features, np.full(len(seconds), frozen / len(seconds))
        if lie.kind == "random":
            rng = np.random.default_rng((self.seed, step, rank, len(kind.direction), 1))
            return features, rng.lognormal(np.log(seconds.mean()), 1.0, len(seconds))
        return features, seconds * (1000.0 if lie.kind == "thousandfold" else 2.0)

    def _totals(self, step: int, rank: int, policy_version: int) -> StepTotals:
        kernels = [kernel_totals(kind, *self._told(kind, step, rank)) for kind in TRUTH]
        return StepTotals(
            step=step,
            policy_version=policy_version,
            seconds=_step_seconds(self, step),
            kernels=kernels,
            home_features=kernels[0].features,
            sent_bytes=1000 + rank,
            wait_seconds=0.001 * rank,
        )


@lru_cache(maxsize=4096)
def _true_calls(
    job: SimulatedJob, kind: KernelKind, step: int, rank: int
) -> tuple[Float64, Float64]:
    """Return (features [n, F], seconds [n]) of a step's kernel calls."""
    truth = np.array(dict(job.truth).get(kind, tuple(TRUTH[kind])))
    speed = dict(job.slow).get(rank, 1.0) if step >= job.slow_from else 1.0
    pace = (job.throttled if step >= job.throttled_from else 1.0) / speed
    features = tile_features(0, job.lengths(step, rank)).astype(np.float64)
    rng = np.random.default_rng((job.seed, step, rank, len(kind.direction)))
    jitter = np.exp(job.noise * rng.standard_normal(len(features)))
    return features, features @ truth * jitter * pace


@lru_cache(maxsize=1024)
def _step_seconds(job: SimulatedJob, step: int) -> float:
    """Return how long the step lasts: ranks meet at its end."""
    slowest = max(job.kernel_seconds(step, rank) for rank in range(job.world_size))
    rng = np.random.default_rng((job.seed, step))
    return slowest + OTHER_SECONDS * (1.0 + OTHER_NOISE * float(rng.standard_normal()))


def _moments(kind: KernelKind, calls: list[tuple[Float64, Float64]]) -> KernelMoments:
    moments = Moments()
    points: list[Point] = []
    for features, seconds in calls:
        moments.add(features, seconds)
        points += as_points(features[:8], seconds[:8])
    return KernelMoments(kind=kind, sums=moments.sums.tolist(), points=points)
