"""Made-up ranks of one job, whose honest reports go to a real balancer."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.observer import Direction, KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    Coordinates,
    KernelMoments,
    KernelTotals,
    Point,
    Report,
    StepTotals,
)
from tests.kernel_calls import as_points, kernel_totals
from tests.running import RunningBalancer

Float64 = NDArray[np.float64]

CALLS = 4
STEPS_A_REPORT = 8
MAX_POINTS = 64
# Seconds per feature, forward.
COSTS = np.array([2e-5, 1e-8, 4e-9, 1e-9, 1e-7, 1e-9])
BACKWARD_FACTOR = 2.5
NOISE = 0.01
OTHER_SECONDS = 0.05
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(kw_only=True)
class Feed:
    """Ranks that make up their work step by step; ``backend`` names their kernels."""

    balancer: RunningBalancer
    job: str
    world_size: int = 4
    backend: str = "sdpa"
    attempt: int = 0
    next_step: int = 0
    sequence: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def run(self, steps: int = 1, *, policy: int = 0, slow: dict[int, float] | None = None) -> None:
        """Run steps and report them.

        Args:
            policy: the version that the ranks run; above 0 their work is even.
            slow: ranks that need this many times longer.
        """
        while steps > 0:
            work = [self._documents() for _ in range(min(steps, STEPS_A_REPORT))]
            for rank in range(self.world_size):
                report = self._report(rank, work, policy, slow or {})
                response = self.balancer.send(report)
                assert response.status_code == 202, response.text
            steps -= len(work)
            self.next_step += len(work)
            self.sequence += 1

    def _documents(self) -> Float64:
        """Return [W, CALLS, F] features of one step under plain Ulysses."""
        lengths = self.random.lognormal(8, 0.5, (self.world_size, CALLS)).astype(np.int64)
        return tile_features(0, lengths).astype(np.float64)

    def _report(
        self, rank: int, work: list[Float64], policy: int, slow: dict[int, float]
    ) -> Report:
        kernels = {direction: Kernel(kind=self._kind(direction)) for direction in DIRECTIONS}
        steps = []
        for number, home in enumerate(work, self.next_step):
            calls = home.mean(axis=0) if policy else home[rank]
            totals = [
                kernel.run(calls, slow.get(rank, 1.0), self.random) for kernel in kernels.values()
            ]
            steps.append(
                StepTotals(
                    step=number,
                    policy_version=policy,
                    seconds=self._slowest(home, policy, slow) + OTHER_SECONDS,
                    kernels=totals,
                    home_features=home[rank].sum(axis=0).tolist(),
                    sent_bytes=25_000_000 if policy else 0,
                    wait_seconds=0.004 if policy else 0.0,
                )
            )
        return Report(
            schema=1,
            job=self.job,
            attempt=self.attempt,
            node=f"node-{rank // 8}",
            agent=f"agent-{self.attempt}-{rank}",
            sequence=self.sequence,
            rank=rank,
            world_size=self.world_size,
            coordinates=Coordinates(dp=rank // 2, cp=rank % 2, pool=rank // 4),
            moments=[kernel.take() for kernel in kernels.values()],
            steps=steps,
        )

    def _slowest(self, home: Float64, policy: int, slow: dict[int, float]) -> float:
        """Return the kernel seconds that all ranks wait for, of features [W, CALLS, F]."""
        work = np.broadcast_to(home.mean(axis=0), home.shape) if policy else home
        pace = np.array([slow.get(rank, 1.0) for rank in range(self.world_size)])
        return float((work.sum(axis=1) @ COSTS * pace).max()) * (1.0 + BACKWARD_FACTOR)

    def _kind(self, direction: Direction) -> KernelKind:
        return KernelKind(
            device="cpu",
            backend=self.backend,
            dtype="float32",
            head_dim=64,
            group_heads=4,
            direction=direction,
        )


@dataclass(kw_only=True)
class Kernel:
    """One rank's kernel of one direction, and what was measured of it."""

    kind: KernelKind
    moments: Moments = field(default_factory=Moments)
    points: list[Point] = field(default_factory=list)

    def run(self, calls: Float64, slowness: float, random: np.random.Generator) -> KernelTotals:
        """Make calls of features [CALLS, F]; return one step's totals."""
        factor = 1.0 if self.kind.direction == "forward" else BACKWARD_FACTOR
        seconds = (calls @ COSTS) * factor * slowness * random.normal(1, NOISE, len(calls))
        self.moments.add(calls, seconds)
        self.points += as_points(calls, seconds)
        return kernel_totals(self.kind, calls, seconds)

    def take(self) -> KernelMoments:
        """Return what a report carries of these calls."""
        return KernelMoments(
            kind=self.kind, sums=self.moments.sums.tolist(), points=self.points[-MAX_POINTS:]
        )
