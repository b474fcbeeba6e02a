"""Micro-batches in pools of changing sizes on real ranks, and how far each is from the reference.

Cases are plain data, as in ``attention_case``: drawn in the test's process, run in the ranks.

Shapes: B micro-batches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.attention_case import Mesh, mesh_pools
from tests.reference import long_tailed_lengths
from tests.small_case import NAMES, Small, small_case, small_layout

TOKENS = 96


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticCase:
    """Forward and backward of some micro-batches.

    Attributes:
        heads: query and kv heads.
        cells: CP groups of each cell, in order, for each of the B micro-batches.
        events: what runs after what: i is the forward of micro-batch i, ~i its backward.
        prepared: compare all plans ahead.
        checkpointed: run forward again in backward.
        resend: send moved inputs again in backward.
        seed: of lengths and tensors.
    """

    mesh: Mesh
    heads: tuple[int, int]
    cells: tuple[tuple[int, ...], ...]
    events: tuple[int, ...]
    prepared: bool = False
    checkpointed: bool = False
    resend: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticOutcome:
    """What one rank saw: its pools' sizes, tiles that moved, and errors of each micro-batch."""

    sizes: list[int]
    moved: list[int]
    errors: list[dict[str, float]]
    plan_mismatches: int


def run_elastic(rank: int, case: ElasticCase) -> ElasticOutcome:
    """Run a case on this rank and compare its shards with the dense float64 reference."""
    pools = mesh_pools(case.mesh)
    attention = PooledAttention(pools, resend_in_backward=case.resend)
    batches = [_small(pools, case, index) for index in range(len(case.cells))]
    if case.prepared:
        for small in batches:
            attention.prepare(small.layout)
    outs: dict[int, Tensor] = {}
    errors: dict[int, dict[str, float]] = {}
    for event in case.events:
        small = batches[max(event, ~event)]
        if event >= 0:
            outs[event] = _attend(attention, small, checkpointed=case.checkpointed)
        else:
            out = outs.pop(~event)
            grads = torch.autograd.grad(out, small.qkv, small.own[3])
            errors[~event] = small.errors((out.detach(), *grads))
    return ElasticOutcome(
        sizes=[len(small.layout.lengths) for small in batches],
        moved=[small.layout.plan.moved for small in batches],
        errors=[errors[index] for index in range(len(batches))],
        plan_mismatches=attention.plan_mismatches,
    )


def cell_of(sizes: tuple[int, ...], dp_rank: int) -> int:
    """Return the size of the cell that holds a CP group, of cells in order."""
    return int(np.repeat(sizes, sizes)[dp_rank])


def _small(pools: SequencePools, case: ElasticCase, index: int) -> Small:
    size = cell_of(case.cells[index], pools.dp_rank)
    cell = [_lengths(case.seed, index, dp_rank) for dp_rank in pools.of(size).dp_ranks]
    layout = small_layout(
        pools, cell, heads=case.heads, tokens=TOKENS, micro_batch=index, size=size
    )
    return small_case(layout, pools, seed=case.seed * len(case.cells) + index)


def _lengths(seed: int, index: int, dp_rank: int) -> list[int]:
    """Return long documents for some CP groups, short ones for the others."""
    rng = np.random.default_rng([seed, index, dp_rank])
    return long_tailed_lengths(rng, TOKENS, float(rng.choice([4, 80])))


def _attend(attention: PooledAttention, small: Small, *, checkpointed: bool) -> Tensor:
    if checkpointed:
        again: Tensor = checkpoint(attention, *small.qkv, small.layout, use_reentrant=False)
        return again
    out: Tensor = attention(*small.qkv, small.layout)
    return out


def worst(outcomes: list[ElasticOutcome]) -> dict[str, float]:
    """Return the largest error of out, dq, dk and dv over all ranks and micro-batches."""
    return {name: max(errors[name] for own in outcomes for errors in own.errors) for name in NAMES}
