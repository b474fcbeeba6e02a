"""Jobs with planted trouble: uneven data, slow ranks, uneven stages, a slow exchange, mismatches.

What a cause costs is what the same job without it would save, so truth needs no diagnosis.

Shapes: W ranks; D documents; F = 6 features; M micro-batches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.balancer.job import Job
from libra.balancer.moments import Moments
from libra.balancer.policy import Policy
from libra.balancer.wire import Coordinates, KernelMoments, KernelTotals, Report, StepTotals
from tests.jobs import feed
from tests.kernel_calls import as_features
from tests.simulated_job import TRUTH

Float64 = NDArray[np.float64]

DOCUMENTS = 12
OTHER_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job that is even unless told otherwise.

    Attributes:
        uneven: how far apart ranks' documents are in length; 0 gives all ranks the same.
        evened: Libra has evened what is uneven, save in the steps ``mismatched``.
        slow: (rank, speed) pairs; ``slow_from`` is the step in which they become so.
        planned: (rank, speed) pairs that evened plans count on.
        layers: of each pipeline stage.
        exchange_s: exposed exchange of every rank.
        rotated: ranks have the same documents in another order of this many micro-batches.
        scatter: kernel seconds of a rank scatter by this, beyond any model.
    """

    world_size: int = 8
    num_steps: int = 16
    seed: int = 0
    uneven: float = 0.0
    evened: bool = False
    mismatched: tuple[int, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()
    slow_from: int = 0
    planned: tuple[tuple[int, float], ...] = ()
    layers: tuple[float, ...] = (1.0,)
    exchange_s: float = 0.0
    rotated: int = 0
    scatter: float = 0.0

    def step_seconds(self) -> float:
        """Return the mean duration of a step."""
        return float(np.mean([self._duration(step) for step in range(self.num_steps)]))

    def job(self, **options: object) -> Job:
        """Return a job that has heard all reports."""
        job = Job("job", **options)  # type: ignore[arg-type]
        if self.evened:
            permille = np.rint(1000 * self._planned()).astype(int).tolist()
            speeds = tuple(permille) if self.planned else ()
            job.publish(Policy(version=0, pooling=True, speeds_permille=speeds), 0.0)
        feed(job, self.reports())
        return job

    def reports(self) -> list[Report]:
        return [
            self._report(step, rank)
            for step in range(self.num_steps)
            for rank in range(self.world_size)
        ]

    def _stage(self, rank: int) -> int:
        return rank * len(self.layers) // self.world_size

    def _home(self, step: int) -> Float64:
        """Return [W, D, F] features of one layer's tiles under plain Ulysses."""
        random = np.random.default_rng((self.seed, step))
        same = np.exp(random.normal(8, 0.4, DOCUMENTS))
        lengths = np.tile(same, (self.world_size, 1))
        if self.rotated:
            factors = np.repeat(np.arange(1, self.rotated + 1), DOCUMENTS // self.rotated)
            shift = DOCUMENTS // self.rotated
            lengths = np.stack([np.roll(4096 * factors, r * shift) for r in range(len(lengths))])
        lengths = lengths * np.exp(random.normal(0, self.uneven, (self.world_size, 1)))
        return tile_features(0, lengths.astype(np.int64)).astype(np.float64)

    def _actual(self, step: int) -> Float64:
        home = self._home(step)
        if self.evened and step not in self.mismatched:
            home = home.mean(axis=0) * (self._planned() / self._planned().mean())[:, None, None]
        return home

    def _planned(self) -> Float64:
        return np.array([dict(self.planned).get(rank, 1.0) for rank in range(self.world_size)])

    def _speed(self, step: int, rank: int) -> float:
        speed = dict(self.slow).get(rank, 1.0) if step >= self.slow_from else 1.0
        random = np.random.default_rng((self.seed, step, rank))
        return float(speed * np.exp(self.scatter * random.standard_normal()))

    def _seconds(self, step: int) -> Float64:
        """Return [W, D] kernel seconds, forward and backward."""
        work = self._actual(step) @ sum(TRUTH.values())
        layers = np.array([self.layers[self._stage(r)] for r in range(self.world_size)])
        speeds = np.array([self._speed(step, rank) for rank in range(self.world_size)])
        return np.asarray(work * (layers / speeds)[:, None], dtype=np.float64)

    def _duration(self, step: int) -> float:
        micro_batches = np.split(self._seconds(step), max(1, self.rotated), axis=1)
        slowest = sum(float(each.sum(axis=1).max()) for each in micro_batches)
        return slowest + self.exchange_s + OTHER_SECONDS

    def _report(self, step: int, rank: int) -> Report:
        home, actual = self._home(step)[rank], self._actual(step)[rank]
        layers, speed = self.layers[self._stage(rank)], self._speed(step, rank)
        moments, totals = [], []
        for kind, truth in TRUTH.items():
            sums = Moments()
            sums.add(actual, actual @ truth / speed)
            moments.append(KernelMoments(kind=kind, sums=sums.sums.tolist()))
            seconds = float((actual @ truth).sum()) * layers / speed
            totals.append(
                KernelTotals(
                    kind=kind, features=as_features((layers * actual).sum(axis=0)), seconds=seconds
                )
            )
        pairs = np.split(home[:, 3], self.rotated) if self.rotated else []
        pooled = self.evened and step not in self.mismatched
        waits = float(self._seconds(step).sum(axis=1).max() - sum(k.seconds for k in totals))
        return Report(
            schema=1,
            job="job",
            node=f"node{rank // 2}",
            agent=f"agent-{rank}",
            sequence=step,
            rank=rank,
            world_size=self.world_size,
            coordinates=Coordinates(dp=rank, pp=self._stage(rank)),
            moments=moments,
            steps=[
                StepTotals(
                    step=step,
                    policy_version=int(self.evened),
                    seconds=self._duration(step),
                    kernels=totals,
                    home_features=as_features(home.sum(axis=0)),
                    home_pairs=[float(each.sum()) for each in pairs],
                    sent_bytes=1000 if pooled else 0,
                    # Ranks of the exchange wait for its slowest, and then for the links.
                    wait_seconds=self.exchange_s + (max(0.0, waits) if pooled else 0.0),
                    plan_mismatches=int(self.evened and step in self.mismatched),
                )
            ],
        )
