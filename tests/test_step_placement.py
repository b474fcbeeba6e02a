"""A step's sequences each get one slot, and the step is as even as when ranks meet allows."""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.attention.shape import PoolShape
from libra.balancer.capacity import Capacities
from libra.balancer.elastic import elastic_sizes, fixed_sizes
from libra.balancer.placement import place
from libra.balancer.step_placement import StepPlacement, place_in_order, place_step

Int64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], PoolShape]:
    """Costs of a step, some of one huge sequence, on a mesh that may have elastic pools."""
    size = draw(st.integers(1, 4))
    dp = draw(st.integers(size, 13))
    doublings = draw(st.integers(0, 2))
    largest = size << doublings if size << doublings <= dp else 0
    shape = PoolShape(
        dp=dp, cp=draw(st.integers(1, 2)), sequences_per_pool=size, largest_pool=largest
    )
    count = dp * draw(st.integers(1, 4))
    costs = draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count))
    if draw(st.booleans()):
        costs[draw(st.integers(0, count - 1))] = draw(st.integers(10**9, 10**11))
    return costs, shape


meetings = st.sampled_from(["micro_batch", "step"])


@given(steps(), meetings, st.data())
def test_every_sequence_has_one_slot_of_one_pool(
    step: tuple[list[int], PoolShape],
    meeting: Literal["micro_batch", "step"],
    data: st.DataObject,
) -> None:
    """Whatever the meeting and the speeds: no sequence lost or doubled, pools as the mesh has."""
    costs, shape = step
    ranks = shape.dp * shape.cp
    speeds = data.draw(
        st.sampled_from([[], [1000] * ranks, [500, *[1000] * (ranks - 1)]]), label="speeds"
    )
    placed = place_step(costs, shape, meeting=meeting, speeds_permille=speeds)

    assert sorted(placed.slots.reshape(-1).tolist()) == list(range(len(costs)))
    assert placed.slots.shape == (len(costs) // shape.dp, shape.dp)
    assert placed.skew >= 1 - 1e-9
    for micro_batch, sizes in enumerate(placed.sizes):
        assert sum(sizes) == shape.dp
        for dp_rank in range(shape.dp):
            cell = placed.cell(micro_batch, dp_rank)
            assert dp_rank in cell
            assert cell == shape.block(dp_rank, len(cell))


def _slowest(
    costs: list[int], placed: StepPlacement, shape: PoolShape, speeds: Sequence[int] = ()
) -> float:
    """The step's time, ranks meeting in every micro-batch."""
    capacities = Capacities(shape, speeds)
    total = 0.0
    for micro_batch, slots in enumerate(placed.slots):
        cells = {placed.cell(micro_batch, dp_rank) for dp_rank in range(shape.dp)}
        total += max(
            sum(costs[slots[dp_rank]] for dp_rank in cell) / capacities.of(cell) for cell in cells
        )
    return total


EXTREMES: dict[str, Callable[[int], list[int]]] = {
    "nothing but empty sequences": lambda count: [0] * count,
    "all alike": lambda count: [7] * count,
    "all alike and large": lambda count: [(2**62 - 1) // count] * count,
    "one costs anything": lambda count: [0] * (count - 1) + [5],
    "one is huge": lambda count: [1] * (count - 1) + [2**61],
    "one is empty": lambda count: [9] * (count - 1) + [0],
    "each twice the last": lambda count: [1 << min(at, 55) for at in range(count)],
}
MESHES = [
    PoolShape(dp=1, cp=1, sequences_per_pool=1),
    PoolShape(dp=2, cp=1, sequences_per_pool=2),
    PoolShape(dp=4, cp=1, sequences_per_pool=1),
    PoolShape(dp=4, cp=2, sequences_per_pool=1, largest_pool=4),
    PoolShape(dp=8, cp=1, sequences_per_pool=2, largest_pool=8),
    PoolShape(dp=9, cp=2, sequences_per_pool=4, largest_pool=8),
    PoolShape(dp=32, cp=1, sequences_per_pool=2),
]


@pytest.mark.parametrize("meeting", ["micro_batch", "step"])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("shape", MESHES, ids=lambda s: f"{s.dp}x{s.cp}-{s.sequences_per_pool}")
@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_costs_fill_every_slot(
    kind: str, shape: PoolShape, micro_batches: int, meeting: Literal["micro_batch", "step"]
) -> None:
    """One cell or as many as sequences, costs alike, all nothing, or one of them all: no error.

    No CP group is left without a sequence, and none is worse off than in the order of drawing,
    also where one rank is slow.
    """
    costs = EXTREMES[kind](shape.dp * micro_batches)
    ranks = shape.dp * shape.cp
    for speeds in ([], [100, *[10_000] * (ranks - 1)]):
        placed = place_step(costs, shape, meeting=meeting, speeds_permille=speeds)

        assert sorted(placed.slots.reshape(-1).tolist()) == list(range(len(costs)))
        assert placed.slots.shape == (micro_batches, shape.dp)
        assert [sum(sizes) for sizes in placed.sizes] == [shape.dp] * micro_batches
        assert min(min(sizes) for sizes in placed.sizes) > 0
        assert np.isfinite(placed.skew)
        if meeting == "micro_batch":
            drawn = _slowest(costs, place_in_order(len(costs), shape), shape, speeds)
            assert _slowest(costs, placed, shape, speeds) <= drawn * (1 + 1e-9)


@given(steps())
def test_elastic_pools_are_never_worse_than_fixed(step: tuple[list[int], PoolShape]) -> None:
    """A step with elastic pools is no slower than with fixed ones alone."""
    costs, shape = step
    fixed = PoolShape(dp=shape.dp, cp=shape.cp, sequences_per_pool=shape.sequences_per_pool)
    time = _slowest(costs, place_step(costs, shape), shape)

    assert time <= _slowest(costs, place_step(costs, fixed), fixed) * (1 + 1e-9)


@given(steps(), st.sampled_from([300, 500, 1000, 1300]))
def test_a_step_is_never_slower_than_longest_first(
    step: tuple[list[int], PoolShape], permille: int
) -> None:
    """Whatever exchanges do to single cells, with pools of unequal size or speed."""
    costs, shape = step
    speeds = [permille, *[1000] * (shape.dp * shape.cp - 1)]
    capacities = Capacities(shape, speeds)
    placed = place_step(costs, shape, speeds_permille=speeds)
    pools = [shape.dp_ranks(pool) for pool in range(shape.num_pools)]
    bears = [capacities.of(pool) for pool in pools] * (len(costs) // shape.dp)
    longest_first = place(costs, shape.cell_sizes(len(costs)), capacities=bears, max_rounds=0)
    times = (longest_first.loads / np.array(bears)).reshape(-1, len(pools)).max(axis=1).sum()
    fair = sum(costs) / sum(bears) * (len(costs) // shape.dp)

    assert placed.skew * fair <= max(times * (1 + 1e-9), 1.0081 * fair)


@given(steps())
def test_the_skew_is_what_the_slots_say(step: tuple[list[int], PoolShape]) -> None:
    """The predicted skew is that of the cells, recounted from the slots."""
    costs, shape = step
    placed = place_step(costs, shape)
    fair = sum(costs) / Capacities(shape).of(range(shape.dp))

    assert placed.skew * fair == pytest.approx(_slowest(costs, placed, shape), rel=1e-9, abs=1e-9)


@given(steps(), meetings, st.randoms(use_true_random=False))
def test_the_order_of_drawing_does_not_matter(
    step: tuple[list[int], PoolShape], meeting: Literal["micro_batch", "step"], rng: object
) -> None:
    """From any order of the sequences every cell gets the same load and the step the same skew."""
    costs, shape = step
    shuffled = list(costs)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    placed = place_step(costs, shape, meeting=meeting)
    again = place_step(shuffled, shape, meeting=meeting)

    assert placed.sizes == again.sizes
    assert placed.skew == again.skew
    assert placed.placement is not None
    assert again.placement is not None
    assert placed.placement.loads.tolist() == again.placement.loads.tolist()


def _drawn(seed: int, sequences: int) -> Int64:
    """Costs with a long tail: the longest about eleven times the mean."""
    rng = np.random.default_rng(seed)
    return (np.minimum(rng.lognormal(0, 1.7, sequences), 40) * 1e9).astype(np.int64)


def test_a_long_sequence_gets_a_larger_pool() -> None:
    """A sequence of twelve fair shares is the limit of pools of 8, and not of pools of 16."""
    costs = np.random.default_rng(0).integers(100, 1900, 64)
    costs[5] = 14_000
    fixed = place_step(costs, PoolShape(dp=64, cp=1, sequences_per_pool=8))
    elastic = place_step(costs, PoolShape(dp=64, cp=1, sequences_per_pool=8, largest_pool=32))

    assert fixed.skew > 1.5
    assert elastic.skew < 1.01
    assert elastic.sizes == ((16, *(8,) * 6),)
    assert 5 in elastic.slots[0, :16]
    assert "1 of 16" in elastic.says


def test_elastic_pools_reach_the_bound_where_fixed_ones_cannot() -> None:
    """Over long-tailed steps elastic pools leave under 1 % where fixed ones leave over 20 %."""
    shapes = [PoolShape(dp=64, cp=1, sequences_per_pool=8, largest_pool=most) for most in (0, 32)]
    fixed, elastic = (
        np.mean([place_step(_drawn(seed, 64), shape).skew for seed in range(30)])
        for shape in shapes
    )

    assert fixed > 1.2
    assert elastic < 1.01


@given(st.lists(st.integers(0, 10**6), min_size=48, max_size=48), st.sampled_from([12, 24, 48]))
def test_elastic_pools_begin_at_multiples_of_their_size(costs: list[int], dp: int) -> None:
    """Every pool is one that process groups were made for; no group is in two, none is left out."""
    shape = PoolShape(dp=dp, cp=1, sequences_per_pool=3, largest_pool=12)
    sizes = elastic_sizes(np.array(costs), shape)

    assert len(sizes) == 48 // dp
    for own in sizes:
        ends = list(itertools.accumulate(own, initial=0))
        assert ends[-1] == dp
        for first, size in zip(ends, own, strict=False):
            assert shape.block(first, size) == range(first, first + size)


def test_no_long_sequence_no_larger_pool() -> None:
    """Lengths that fixed pools even out get no larger ones."""
    shape = PoolShape(dp=16, cp=1, sequences_per_pool=4, largest_pool=16)

    assert elastic_sizes(np.full(32, 7), shape) == fixed_sizes(32, shape)
    assert place_step(np.full(32, 7), shape).sizes == ((4,) * 4,) * 2


def test_micro_batches_of_long_sequences_are_dearer() -> None:
    """Two pools, four micro-batches, one sequence of six shares: no pool waits for it idly."""
    costs = np.repeat([2500, 1000], 16)
    costs[3] = 12_000
    placed = place_step(costs, PoolShape(dp=8, cp=1, sequences_per_pool=4))
    loads = costs[placed.slots].reshape(4, 2, 4).sum(axis=2)
    assert 3 in placed.slots[0]
    assert loads.min(axis=1)[0] > 1.15 * loads[1:].mean()
    assert placed.skew < 1.12


def test_uneven_micro_batches_gain_over_even_cells() -> None:
    """Over long-tailed steps of two pools, a step ends within 3 % of perfect balance on average.

    With all cells evened alike, and only ordered by cost, it is twice as far from it.
    """
    shape = PoolShape(dp=16, cp=1, sequences_per_pool=8)
    skews = [place_step(_drawn(seed, 128), shape).skew for seed in range(30)]

    assert np.mean(skews) < 1.03


def test_meeting_once_a_step_needs_no_pools() -> None:
    """With enough micro-batches the totals of CP groups are even: nothing moves, and it says so."""
    placed = place_step(_drawn(0, 256), PoolShape(dp=8, cp=1, sequences_per_pool=4), meeting="step")

    assert not placed.pooling
    assert placed.skew < 1.008
    assert "no tile moves" in placed.says
    totals = _drawn(0, 256)[placed.slots].sum(axis=0)
    assert totals.max() / totals.mean() == pytest.approx(placed.skew)


def test_meeting_once_a_step_uses_pools_where_placement_is_not_enough() -> None:
    """With one micro-batch a step, only pools can even it; their totals then are even."""
    shape = PoolShape(dp=32, cp=1, sequences_per_pool=8)
    costs = np.minimum(_drawn(1, 32), 4 * 10**9)
    placed = place_step(costs, shape, meeting="step")
    pools = costs[placed.slots].reshape(-1, 4, 8).sum(axis=(0, 2))

    assert placed.pooling
    assert placed.skew == pytest.approx(pools.max() / pools.mean())
    assert placed.skew < 1.02


@pytest.mark.parametrize("meeting", ["micro_batch", "step"])
def test_a_pool_with_a_slow_rank_gets_less(meeting: Literal["micro_batch", "step"]) -> None:
    """One rank at half speed: its pool of four bears seven eighths of the others' work."""
    shape = PoolShape(dp=16, cp=1, sequences_per_pool=4)
    costs = np.random.default_rng(0).integers(10**6, 2 * 10**6, 16 if meeting == "step" else 128)
    speeds = [500] + [1000] * 15
    placed = place_step(costs, shape, meeting=meeting, speeds_permille=speeds)
    loads = costs[placed.slots].reshape(-1, 4, 4).sum(axis=(0, 2))

    assert placed.pooling
    assert loads[0] / loads[1:].mean() == pytest.approx(7 / 8, abs=0.01)
    assert placed.skew < 1.02


def test_the_slowest_plane_rules_a_pool_of_planes() -> None:
    """Where planes bear equal work, a pool is as slow as the plane with the slow rank."""
    shape = PoolShape(dp=4, cp=2, sequences_per_pool=2)
    speeds = [1000, 500, *[1000] * 6]

    assert Capacities(shape, speeds).of(range(2)) == 3000
    assert Capacities(shape, speeds, heads_even=False).of(range(2)) == 3500
    assert Capacities(shape, speeds).of(range(2, 4)) == 4000


def test_in_order_nothing_is_placed() -> None:
    """Plain Ulysses takes the sequences as they come."""
    placed = place_in_order(6, PoolShape(dp=3, cp=1, sequences_per_pool=2))

    assert placed.slots.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert placed.sizes == ((2, 1), (2, 1))
    assert not placed.pooling
    assert placed.cell(1, 2) == range(2, 3)
    with pytest.raises(ValueError, match="dp_rank=3"):
        placed.cell(0, 3)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"costs": [1, 2, 3]}, "num_sequences=3"),
        ({"costs": [1.0] * 4}, "costs"),
        ({"costs": [1, 2, 3, -4]}, r"costs\[3\]=-4"),
        ({"costs": []}, "costs"),
        ({"meeting": "never"}, "meeting='never'"),
        ({"speeds_permille": [1000]}, "speeds_permille"),
        ({"speeds_permille": [1000, 0]}, "speeds_permille"),
    ],
)
def test_bad_steps_are_refused(change: dict[str, object], match: str) -> None:
    """What cannot be placed is an error that names the setting."""
    good: dict[str, object] = {"costs": [1, 2, 3, 4]}
    shape = PoolShape(dp=2, cp=1, sequences_per_pool=2)
    with pytest.raises(ValueError, match=match):
        place_step(shape=shape, **{**good, **change})  # type: ignore[arg-type]
