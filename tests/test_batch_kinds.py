"""Kinds of batches and meshes that other implementations are known to get wrong, each whole.

Drawn cases cover these too now and then; here each kind has a name and runs every time.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from libra.attention.heads import HeadSplit
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.attention_case import Case, Mesh, Outcome, Packed, Policy, mesh_pools, run_case
from tests.small_case import NAMES, Small, attend, small_case, small_layout
from tests.workers import RankWorkers

WorkerRanks = Callable[[int], RankWorkers]

pytestmark = pytest.mark.dist

# Sums of up to two thousand products of unit normals in float64.
EXACT = 1e-12
PLANES = Mesh(ranks=4, cp=2, pool=2)


def _case(mesh: Mesh, heads: tuple[int, int], *sequences: Packed, equal: bool = False) -> Case:
    return Case(
        mesh=mesh,
        heads=HeadSplit(query_heads=heads[0], kv_heads=heads[1], cp=mesh.cp),
        head_dim=32,
        sequences=sequences,
        equal_tokens=equal,
        policy=Policy(block_rows=8),
        dtype="float64",
        seed=1,
    )


def _expect_exact(workers: RankWorkers, case: Case, *, moves: bool) -> None:
    outcomes: list[Outcome] = workers.run(run_case, case)
    errors = [outcome.errors for outcome in outcomes]
    assert all(error < EXACT for own in errors for error in own.values()), errors
    assert any(outcome.moved for outcome in outcomes) == moves


@pytest.mark.parametrize(
    ("mesh", "heads"),
    [
        (Mesh(ranks=3, cp=3, pool=1), (6, 2)),
        (Mesh(ranks=3, cp=3, pool=1), (4, 1)),
        (Mesh(ranks=3, cp=1, pool=3), (4, 2)),
        (Mesh(ranks=4, cp=4, pool=1), (6, 2)),
        (Mesh(ranks=4, cp=4, pool=1), (3, 3)),
    ],
    ids=str,
)
def test_a_first_step_at_any_group_size(
    worker_ranks: WorkerRanks, mesh: Mesh, heads: tuple[int, int]
) -> None:
    """Three ranks, heads that the ranks do not divide, fewer heads than ranks: the first call."""
    sequences = (Packed(runs=((1, 90), (7, 3)), padding=2), Packed(runs=((20, 5),)))
    case = _case(mesh, heads, *[sequences[min(own, 1)] for own in range(mesh.dp)])

    # Ranks of one CP group even out what its uneven heads cost them.
    _expect_exact(worker_ranks(mesh.ranks), case, moves=mesh.pool > 1 or not case.heads.even)


@pytest.mark.parametrize("length", [1, 7, 89, 137, 2041])
def test_lengths_that_nothing_divides(worker_ranks: WorkerRanks, length: int) -> None:
    """A document of any length over two ranks loses no key, and gradients repeat to the bit."""
    case = _case(PLANES, (2, 2), Packed(runs=((1, length),)), Packed(runs=((length // 8, 3),)))
    workers = worker_ranks(4)

    _expect_exact(workers, case, moves=length > 7)
    assert all(workers.run(_repeats, length))


def _repeats(rank: int, length: int) -> bool:
    pools = mesh_pools(PLANES)
    attention = PooledAttention(pools)
    small = small_case(small_layout(pools, [[length], []], tokens=length), pools)
    first, second = (attend(attention, small) for _ in range(2))
    return all(map(torch.equal, first, second))


@pytest.mark.parametrize("heads", [(2, 2), (3, 3)])
@pytest.mark.parametrize("equal", [False, True])
def test_a_rank_with_nothing_but_padding(
    worker_ranks: WorkerRanks, heads: tuple[int, int], equal: bool
) -> None:
    """It has work of others to do, and its own output and gradients are zero."""
    padding = Packed(runs=(), padding=24)
    case = _case(PLANES, heads, Packed(runs=((1, 64), (4, 6))), padding, equal=equal)

    _expect_exact(worker_ranks(4), case, moves=True)
    nothing = replace(case, sequences=(padding, padding))
    _expect_exact(worker_ranks(4), nothing, moves=False)


def _in_a_row(rank: int, ahead: bool) -> list[dict[str, float]]:
    """Run one step of micro-batches none of which has the shape of the one before."""
    pools = mesh_pools(PLANES)
    attention = PooledAttention(pools)
    cells = [
        (96, [[96], [8] * 12]),
        (33, [[30, 3], [1] * 33]),
        (7, [[], [7]]),
        (200, [[5] * 40, [150, 50]]),
        (1, [[1], []]),
        (96, [[96], [8] * 12]),
    ]
    batches = [
        small_case(small_layout(pools, cell, tokens=tokens, micro_batch=index), pools, seed=index)
        for index, (tokens, cell) in enumerate(cells)
    ]
    if ahead:
        for batch in batches:
            attention.prepare(batch.layout)
    return [batch.errors(attend(attention, batch)) for batch in batches]


@pytest.mark.parametrize("ahead", [False, True])
def test_every_micro_batch_may_have_its_own_shape(worker_ranks: WorkerRanks, ahead: bool) -> None:
    """Longer, shorter, empty: no buffer, size or plan of one is used for the next."""
    for errors in worker_ranks(4).run(_in_a_row, ahead):
        assert max(max(own.values()) for own in errors) < EXACT, errors


# The place of a long document that is cut and moved, one that stays, and one among moved ones.
POISONED = {"cut": (0, slice(0, 80)), "small": (0, slice(80, 88)), "other": (1, slice(8, 16))}


def _poisoned(rank: int, place: int, rows: slice, resend: bool) -> list[tuple[str, bool, float]]:
    """Return, by tensor, whether NaN is where it should be only, and the error elsewhere."""
    pools = mesh_pools(PLANES)
    layout = small_layout(pools, [[80, 8, 8], [8] * 12])
    assert layout.plan.moved
    attention = PooledAttention(pools, resend_in_backward=resend)
    clean = small_case(layout, pools, seed=3)
    wanted = clean.reference()
    small = _with_nan(clean, pools, place, rows)
    mine = torch.zeros(layout.tokens, dtype=torch.bool)
    if pools.place == place:
        mine[rows] = True
    mine = mine[layout.shard]
    found = []
    for name, got, expected in zip(NAMES, attend(attention, small), wanted, strict=True):
        outside = bool(got.isfinite()[~mine].all())
        inside = bool(got.isnan()[mine].flatten(1).any(dim=1).all())
        error = float((got - expected)[~mine].abs().max()) if (~mine).any() else 0.0
        found.append((name, inside and outside, error))
    return found


def _with_nan(small: Small, pools: SequencePools, place: int, rows: slice) -> Small:
    whole: list[Tensor] = [x.clone() for x in small.whole]
    if pools.place == place:
        for x in whole:
            x[rows] = torch.nan
    own = tuple(x[small.layout.shard].clone() for x in whole)
    return replace(small, own=(*(x.requires_grad_() for x in own[:3]), own[3]))


@pytest.mark.parametrize("resend", [False, True])
@pytest.mark.parametrize("where", POISONED)
def test_nan_stays_in_its_document(worker_ranks: WorkerRanks, where: str, resend: bool) -> None:
    """A bad document spoils its own rows and gradients, wherever its tiles are computed."""
    for own in worker_ranks(4).run(_poisoned, *POISONED[where], resend):
        for name, contained, error in own:
            assert contained, (name, own)
            assert error < EXACT, (name, own)
