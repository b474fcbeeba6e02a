"""Ranks without process groups: what a sampler must know of them, and samplers of whole jobs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch._C._distributed_c10d import HashStore

from libra.agent.cell import Cell
from libra.agent.sampler import PoolSampler
from libra.attention.cost import TileCost
from libra.attention.shape import PoolShape
from libra.balancer.policy import Policy

COST = TileCost.from_seconds((1e-5, 1e-7, 1e-7, 1e-9, 1e-6, 5e-8))
POLICY = Policy(version=1, pooling=True, cost=COST.coefficients, cost_scale_bits=COST.scale_bits)
HEADS: dict[str, Any] = {"query_heads": 4, "kv_heads": 2}
LENGTHS = np.random.default_rng(0).lognormal(4, 1.4, 600).astype(np.int64) % 900 + 1
TOKENS = 1024

Documents = Counter[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The nodes of a pool's ranks."""

    plane_nodes: Sequence[int]
    pool_nodes: Sequence[int]


@dataclass(frozen=True)
class Place:
    """The coordinates of one rank, without process groups."""

    shape: PoolShape
    dp_rank: int
    cp_rank: int = 0

    @property
    def pool(self) -> int:
        return self.shape.pool(self.dp_rank)

    def of(self, size: int) -> Nodes:
        groups = len(self.shape.block(self.dp_rank, size))
        return Nodes(plane_nodes=(0,) * groups, pool_nodes=(0,) * groups * self.shape.cp)


def samplers(
    dp: int,
    pool: int,
    *,
    global_batch: int = 8,
    cp: int = 1,
    cp_rank: int = 0,
    largest: int = 0,
    lengths: Any = LENGTHS,
    store: Any = None,
    policy: Policy = POLICY,
    **settings: Any,
) -> list[PoolSampler]:
    """Return the samplers of a job's CP groups, which share a store and propose one policy.

    One rank of each group: that at ``cp_rank``.
    """
    shape = PoolShape(dp=dp, cp=cp, sequences_per_pool=pool, largest_pool=largest)
    settings = {"seed": 7, "tokens": TOKENS, **HEADS, **settings}
    shared = HashStore() if store is None else store
    made = [
        PoolSampler(
            lengths,
            Place(shape, rank, cp_rank),
            global_batch=global_batch,
            store=shared,
            **settings,
        )
        for rank in range(dp)
    ]
    for sampler in made:
        sampler.policy_source = lambda: policy
    return made


def documents(cells: Iterable[Cell]) -> Documents:
    """Count the (document, begin, end) of cells."""
    seen: Documents = Counter()
    for cell in cells:
        part = cell.segments
        seen.update(
            zip(part.document.tolist(), part.begin.tolist(), part.end.tolist(), strict=True)
        )
    return seen


def documents_of_step(ranks: Iterable[PoolSampler], step: int, policy: Policy) -> Documents:
    """Count the (document, begin, end) of a step over all ranks and micro-batches."""
    return documents(cell for sampler in ranks for cell in sampler.cells(step, policy))
