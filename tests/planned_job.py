"""Ranks that follow policies, reported to a real job: the control loop closed, by a cheap plan.

In place of moved tiles each rank's documents are stretched until all ranks have their share of
what the policy takes for the cost. So wrong costs or speeds leave ranks uneven, as they would.

Shapes: W ranks; D documents a rank; F = 6 features.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.observer import KernelKind
from libra.balancer.bodies import policy_coefficients, policy_speeds, with_costs
from libra.balancer.events import Event
from libra.balancer.job import Job
from libra.balancer.moments import Moments
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.wire import (
    Coordinates,
    KernelMoments,
    Report,
    StepTotals,
)
from tests.jobs import NOW_S
from tests.kernel_calls import as_features, as_points, kernel_totals
from tests.simulated_job import TRUTH

Float64 = NDArray[np.float64]

_DOCUMENTS = 6


@dataclass(kw_only=True)
class PlannedJob:
    """A job of W ranks; its course is a function of the seed and of the policies it is given.

    Attributes:
        sigma: standard deviation of the logarithm of document lengths.
        noise: of one kernel call.
        delay_steps: from a policy's publication to the first step under it.
        step: the next one; ``skews``: of those run.
    """

    world_size: int = 4
    seed: int = 0
    sigma: float = 1.2
    noise: float = 0.03
    delay_steps: int = 2
    attempt: int = 0
    step: int = 0
    skews: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slowness = np.ones(self.world_size)
        self._known: list[Policy] = [HOME_POLICY] * self.delay_steps

    def run(self, job: Job, steps: int) -> list[Event]:
        """Run steps, report them to the job, and return what it tells."""
        events: list[Event] = []
        for _ in range(steps):
            self._known.append(job.policy)
            for report in self.reports(self._known.pop(0)):
                events += job.apply(report, NOW_S)
            self.step += 1
        return events

    def reports(self, policy: Policy) -> list[Report]:
        """Return what all ranks report of the next step, run under a policy."""
        rng = np.random.default_rng((self.seed, self.step))
        lengths = np.exp(rng.normal(7.0, self.sigma, (self.world_size, _DOCUMENTS)))
        home = tile_features(0, np.clip(lengths, 16, 65536).astype(np.int64)).astype(float)
        features = home * self._stretch(home.sum(axis=1), policy, rng)[:, None, None]
        kernels = {}
        for kind, truth in TRUTH.items():
            jitter = np.exp(self.noise * rng.standard_normal(features.shape[:2]))
            kernels[kind] = features @ truth * jitter * self.slowness[:, None]
        own = np.sum([seconds.sum(axis=1) for seconds in kernels.values()], axis=0)
        self.skews.append(float(own.max() / own.mean()))
        step_s = 0.01 + float(own.max() * np.exp(0.01 * rng.standard_normal()))
        return [
            self._report(rank, policy, _Work(home[rank], features[rank], kernels), step_s)
            for rank in range(self.world_size)
        ]

    def _report(self, rank: int, policy: Policy, work: "_Work", step_s: float) -> Report:
        totals = StepTotals(
            step=self.step,
            policy_version=policy.version,
            seconds=step_s,
            kernels=[
                kernel_totals(kind, work.features, seconds[rank])
                for kind, seconds in work.kernels.items()
            ],
            home_features=as_features(work.home.sum(axis=0)),
            sent_bytes=0,
            wait_seconds=0.0,
        )
        return Report(
            schema=1,
            job="job",
            attempt=self.attempt,
            node=f"node{rank}",
            agent=f"agent-{self.attempt}-{rank}",
            sequence=self.step,
            rank=rank,
            world_size=self.world_size,
            coordinates=Coordinates(dp=rank, cp=0, pool=0),
            moments=[
                _moments(kind, work.features, seconds[rank])
                for kind, seconds in work.kernels.items()
            ],
            steps=[totals],
        )

    def _stretch(self, home: Float64, policy: Policy, rng: np.random.Generator) -> Float64:
        """Return by how much [W] each rank's work grows or shrinks."""
        if not policy.pooling:
            return np.ones(self.world_size)
        cost = home @ policy_coefficients(policy)
        speeds = policy_speeds(policy, self.world_size)
        uneven = np.exp(0.005 * rng.standard_normal(self.world_size))
        return np.asarray(cost.sum() * speeds / speeds.sum() / cost * uneven, dtype=float)


class _Work(NamedTuple):
    """One rank's [D, F] features at home and as computed, and all ranks' [W, D] seconds."""

    home: Float64
    features: Float64
    kernels: dict[KernelKind, Float64]


def harmful_policies(world_size: int) -> list[Policy]:
    """Return policies that no measurement could bring about: speeds and costs at odds with all."""
    fast = tuple(4000 if rank == 1 else 1000 for rank in range(world_size))
    mixed = tuple(500 if rank % 2 else 2000 for rank in range(world_size))
    base = Policy(version=0, pooling=True, reason="forced in")
    honest = with_costs(base, np.sum(list(TRUTH.values()), axis=0))
    costs = [(1e-3, 0.0, 0.0, 0.0, 0.0, 0.0), (0.0, 1e-6, 0.0, 0.0, 0.0, 0.0)]
    return [
        msgspec.structs.replace(base, pooling=False),
        *(with_costs(base, np.array(cost)) for cost in costs),
        *(msgspec.structs.replace(honest, speeds_permille=speeds) for speeds in (fast, mixed)),
    ]


def _moments(kind: KernelKind, features: Float64, seconds: Float64) -> KernelMoments:
    moments = Moments()
    moments.add(features, seconds)
    points = as_points(features[:2], seconds[:2])
    return KernelMoments(kind=kind, sums=moments.sums.tolist(), points=points)
