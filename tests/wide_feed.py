"""Thousands of made-up ranks of one job, reported to a real balancer in a few requests a step.

A body is encoded once for many ranks and then patched, since making thousands of reports anew for
each of hundreds of steps would take minutes. Each rank's seconds scatter by themselves.

Shapes: W ranks; n ranks of a body.
"""

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.load_bodies import Body, Node, batch_body
from tests.running import MSGPACK, RunningBalancer

Float64 = NDArray[np.float64]

# As many as one batch may hold.
_ROWS = 1024
_NOISE = 0.02
# Documents differ from step to step: the same for all ranks of a CP group.
_UNEVEN = 0.08
_CP = 8


@dataclass(kw_only=True)
class WideFeed:
    """A job of W ranks that runs step after step; ``next_step`` counts from ``first_step``.

    Attributes:
        slow: ranks that take this many times longer.
    """

    balancer: RunningBalancer
    job: str
    world_size: int = 4096
    slow: dict[int, float] = field(default_factory=dict)
    next_step: int = 0

    def __post_init__(self) -> None:
        rng = random.Random(4)
        self._random = np.random.default_rng(4)
        self._nodes = [
            Node(
                job=self.job,
                world_size=self.world_size,
                first_rank=first,
                ranks=min(_ROWS, self.world_size - first),
            )
            for first in range(0, self.world_size, _ROWS)
        ]
        self._bodies: list[Body] = [batch_body(node, rng) for node in self._nodes]
        work = np.concatenate([body.rank_seconds for body in self._bodies])
        # What is drawn for each rank differs a lot; here uneven ranks are those that are asked for.
        self._evening = work.mean() / work

    def run(self, steps: int = 1) -> None:
        """Report steps, one after the other."""
        path = f"/api/v1/jobs/{self.job}/batches"
        for _ in range(steps):
            factors = self._factors()
            for node, body in zip(self._nodes, self._bodies, strict=True):
                own = factors[node.first_rank : node.first_rank + node.ranks]
                content = body.fill(self.next_step, own.tolist())
                answer = self.balancer.client.post(path, content=content, headers=MSGPACK)
                assert answer.status_code == 202, answer.text
            self.next_step += 1

    def _factors(self) -> Float64:
        """Return [W], by how much each rank's seconds differ from its body's."""
        groups = self._random.lognormal(0.0, _UNEVEN, -(-self.world_size // _CP))
        factors = np.repeat(groups, _CP)[: self.world_size]
        factors *= self._evening * self._random.lognormal(0.0, _NOISE, self.world_size)
        for rank, slowness in self.slow.items():
            factors[rank] *= slowness
        return factors
