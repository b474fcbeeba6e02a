"""Pools of changing sizes: each micro-batch is exact, and no rank waits for one outside its pool.

Start here when a rank hangs or differs as soon as ``largest_pool`` is set.
"""

import datetime
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.attention.heads import HeadSplit
from libra.attention.layout import make_layout
from libra.attention.pooled import PooledAttention
from libra.attention.shape import PoolShape
from tests.attention_case import Mesh, mesh_pools
from tests.elastic_case import ElasticCase, ElasticOutcome, cell_of, run_elastic, worst
from tests.small_case import attend, small_case, small_layout
from tests.workers import RankWorkers

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

WorkerRanks = Callable[[int], RankWorkers]

# As in test_exactness: sums of some hundred products of unit normals in float64.
EXACT = 1e-12
# Elastic pools everywhere, from two sizes or three, of whole CP groups, and where the last CP
# groups have too few neighbours for a larger pool.
MESHES = [
    Mesh(ranks=4, cp=1, pool=1, largest=4),
    Mesh(ranks=4, cp=1, pool=2, largest=4),
    Mesh(ranks=4, cp=2, pool=1, largest=2),
    Mesh(ranks=6, cp=1, pool=2, largest=4),
    Mesh(ranks=6, cp=2, pool=1, largest=2),
]
# Even ones move within planes; with 3 over two ranks of a CP group the whole pool is one group.
HEADS = [(4, 2), (3, 3)]
PART = Mesh(ranks=6, cp=1, pool=2, largest=4)


def _name(mesh: Mesh) -> str:
    return f"{mesh.ranks}ranks-cp{mesh.cp}-pool{mesh.pool}to{mesh.largest}"


@st.composite
def _cells(draw: st.DrawFn, mesh: Mesh) -> tuple[int, ...]:
    """Draw the sizes of a micro-batch's cells: any pools that together hold each CP group once."""
    shape = PoolShape(
        dp=mesh.dp, cp=mesh.cp, sequences_per_pool=mesh.pool, largest_pool=mesh.largest
    )
    sizes: list[int] = []
    while sum(sizes) < shape.dp:
        first = sum(sizes)
        fitting = [len(block) for block in shape.blocks(first) if block.start == first]
        sizes.append(draw(st.sampled_from(fitting[::-1])))
    return tuple(sizes)


@st.composite
def _events(draw: st.DrawFn, batches: int) -> tuple[int, ...]:
    """Draw an order in which each backward comes after its forward, and in any order else."""
    coming, ahead, events = list(range(batches)), list[int](), list[int]()
    while coming or ahead:
        if coming and (not ahead or draw(st.booleans())):
            ahead.append(coming.pop(0))
            events.append(ahead[-1])
        else:
            events.append(~ahead.pop(draw(st.integers(0, len(ahead) - 1))))
    return tuple(events)


@st.composite
def _cases(draw: st.DrawFn, mesh: Mesh) -> ElasticCase:
    cells = draw(st.lists(_cells(mesh), min_size=2, max_size=5))
    return ElasticCase(
        mesh=mesh,
        heads=draw(st.sampled_from(HEADS)),
        cells=tuple(cells),
        events=draw(_events(len(cells))),
        prepared=draw(st.booleans()),
        checkpointed=draw(st.booleans()),
        resend=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def _expect_exact(outcomes: list[ElasticOutcome], case: ElasticCase) -> bool:
    """Return whether tiles moved in an elastic pool; each tensor must be the reference's."""
    for rank, own in enumerate(outcomes):
        assert own.sizes == [cell_of(sizes, rank // case.mesh.cp) for sizes in case.cells]
        assert own.plan_mismatches == 0
    assert max(worst(outcomes).values()) < EXACT, worst(outcomes)
    return any(
        moved
        for own in outcomes
        for size, moved in zip(own.sizes, own.moved, strict=True)
        if size > case.mesh.pool
    )


def _expect_drawn_exact(workers: RankWorkers, mesh: Mesh, max_examples: int) -> None:
    moved = False

    @settings(max_examples=max_examples, report_multiple_bugs=False)
    @given(case=_cases(mesh))
    def micro_batches_are_exact(case: ElasticCase) -> None:
        nonlocal moved
        moved |= _expect_exact(workers.run(run_elastic, case), case)

    micro_batches_are_exact()
    assert moved


@pytest.mark.parametrize("mesh", MESHES, ids=_name)
def test_any_sizes_in_any_order_equal_one_process(worker_ranks: WorkerRanks, mesh: Mesh) -> None:
    """Output, dq, dk and dv are dense attention's, however forwards and backwards interleave."""
    _expect_drawn_exact(worker_ranks(mesh.ranks), mesh, max_examples=8)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mesh", MESHES, ids=_name)
def test_many_orders_of_sizes_equal_one_process(worker_ranks: WorkerRanks, mesh: Mesh) -> None:
    """The same for several hundred cases."""
    _expect_drawn_exact(worker_ranks(mesh.ranks), mesh, max_examples=60)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("mesh", MESHES, ids=_name)
def test_large_and_small_pools_take_turns(
    worker_ranks: WorkerRanks, mesh: Mesh, heads: tuple[int, int], prepared: bool
) -> None:
    """Large, small, large: all in flight at once, and back in the order in which they came."""
    large, rest = divmod(mesh.dp, mesh.largest)
    largest = (mesh.largest,) * large + (mesh.pool,) * (rest // mesh.pool)
    fixed = (mesh.pool,) * (mesh.dp // mesh.pool)
    case = ElasticCase(
        mesh=mesh,
        heads=heads,
        cells=(largest, fixed, largest),
        events=(0, 1, 2, ~0, ~1, ~2),
        prepared=prepared,
    )

    assert _expect_exact(worker_ranks(mesh.ranks).run(run_elastic, case), case)


def _in_turn(rank: int) -> list[dict[str, float]]:
    """Attend twice, where the other pool begins when this one has ended, and the reverse."""
    pools = mesh_pools(PART)
    attention = PooledAttention(pools)
    size = 4 if rank < 4 else 2
    errors = []
    for turn, first in enumerate((4, 2)):
        small = small_case(small_layout(pools, step=turn, size=size), pools, seed=turn)
        if size != first:
            others = range(4) if first == 4 else range(4, 6)
            ended = [f"elastic/{turn}/{own}" for own in others]
            pools.store.wait(ended, datetime.timedelta(seconds=30))
        errors.append(small.errors(attend(attention, small)))
        pools.store.set(f"elastic/{turn}/{rank}", "")
    return errors


def test_no_rank_waits_for_one_outside_its_pool(worker_ranks: WorkerRanks) -> None:
    """A pool of four and one of two share a micro-batch, and neither needs the other to begin."""
    for errors in worker_ranks(6).run(_in_turn, timeout_s=60):
        assert max(max(own.values()) for own in errors) < EXACT


def _alone(rank: int) -> list[dict[str, float]]:
    """Run three micro-batches, where each rank begins when the one before has ended all its own."""
    pools = mesh_pools(Mesh(ranks=4, cp=1, pool=4))
    attention = PooledAttention(pools)
    if rank:
        pools.store.wait([f"alone/{rank - 1}"], datetime.timedelta(seconds=30))
    errors = []
    for micro_batch in range(3):
        layout = small_layout(pools, micro_batch=micro_batch, pooling=False, alone=True)
        attention.prepare(layout)
        small = small_case(layout, pools, seed=micro_batch)
        errors.append(small.errors(attend(attention, small)))
    pools.store.set(f"alone/{rank}", "")
    return errors


def test_ranks_that_are_alone_do_not_wait_for_their_pool(worker_ranks: WorkerRanks) -> None:
    """Where ranks meet once a step, one of them may run all its micro-batches before another."""
    for errors in worker_ranks(4).run(_alone, timeout_s=60):
        assert max(max(own.values()) for own in errors) < EXACT


def test_tiles_cannot_move_among_ranks_that_are_alone() -> None:
    """Who asks for both is told, before a rank waits for one that never comes."""
    heads = HeadSplit(query_heads=2, kv_heads=2)
    with pytest.raises(ValueError, match=r"alone=True: must be with settings\.pooling=False"):
        make_layout([[8], [8]], 0, tokens=8, heads=heads, alone=True)


def _disagree(rank: int) -> tuple[list[int], list[int], float]:
    """Return mismatches and moves by micro-batch, of which rank 1 plans the first its own way."""
    pools = mesh_pools(PART)
    attention = PooledAttention(pools)
    mismatches, moved, largest = [], [], 0.0
    for index, sizes in enumerate([(4, 2), (2, 2, 2), (4, 2)]):
        layout = small_layout(
            pools,
            micro_batch=index,
            size=cell_of(sizes, rank),
            pooling=(rank, index) != (1, 0),
        )
        small = small_case(layout, pools, seed=index)
        largest = max(largest, *small.errors(attend(attention, small)).values())
        mismatches.append(attention.plan_mismatches)
        moved.append(layout.plan.moved)
    return mismatches, moved, largest


@pytest.mark.fault
def test_only_the_pool_that_disagrees_runs_at_home(worker_ranks: WorkerRanks) -> None:
    """The pool beside it, and the same ranks in other pools after, go on as planned."""
    seen = worker_ranks(6).run(_disagree)

    assert [mismatches for mismatches, _, _ in seen] == [[1, 1, 1]] * 4 + [[0, 0, 0]] * 2
    assert all(moved[0] for rank, (_, moved, _) in enumerate(seen) if rank != 1)
    assert max(largest for _, _, largest in seen) < EXACT
