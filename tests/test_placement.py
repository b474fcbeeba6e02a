"""Placement fills every slot once, is as even as its bound allows, and is the same everywhere."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from libra.balancer.bound import lower_bound
from libra.balancer.placement import Placement, place

shapes = st.tuples(st.integers(1, 8), st.integers(1, 6))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int]:
    cells, slots = draw(shapes)
    size = cells * slots
    return draw(st.lists(st.integers(0, 10**12), min_size=size, max_size=size)), cells


@st.composite
def uneven_problems(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Costs, and the sizes of cells; also sizes that no mesh gives."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    size = sum(sizes)
    return draw(st.lists(st.integers(0, 10**12), min_size=size, max_size=size)), sizes


def _heaviest(placed: Placement) -> int:
    return int((placed.loads * placed.weights).max())


def _longest_first_only(costs: list[int], cells: int) -> Placement:
    return place(costs, cells, max_rounds=0)


@given(problems())
def test_every_sequence_has_one_slot(problem: tuple[list[int], int]) -> None:
    """Each sequence is in exactly one cell, and the loads are what the cells hold."""
    costs, cells = problem
    placed = place(costs, cells)

    assert sorted(placed.cells.reshape(-1).tolist()) == list(range(len(costs)))
    np.testing.assert_array_equal(np.array(costs)[placed.cells].sum(axis=1), placed.loads)


@given(problems())
def test_swaps_never_do_harm_and_the_bound_holds(problem: tuple[list[int], int]) -> None:
    """Swapping is never worse than longest-first alone, and nothing beats the bound."""
    costs, cells = problem
    placed = place(costs, cells)

    assert placed.loads.max() <= _longest_first_only(costs, cells).loads.max()
    assert placed.loads.max() >= placed.bound


@given(problems(), st.randoms(use_true_random=False))
def test_order_of_equal_inputs_does_not_matter(problem: tuple[list[int], int], rng: object) -> None:
    """The cells' loads are the same from any order of the sequences."""
    costs, cells = problem
    shuffled = list(costs)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]

    np.testing.assert_array_equal(place(costs, cells).loads, place(shuffled, cells).loads)


@given(uneven_problems())
def test_cells_of_unequal_sizes_are_filled_exactly(problem: tuple[list[int], list[int]]) -> None:
    """Each sequence has one slot of a cell of the size asked for, and loads compare by slot."""
    costs, sizes = problem
    placed = place(costs, sizes)
    cells = np.split(placed.order, np.cumsum(sizes)[:-1])

    assert sorted(placed.order.tolist()) == list(range(len(costs)))
    assert (placed.cells >= 0).sum(axis=1).tolist() == sizes
    assert placed.loads.tolist() == [sum(costs[i] for i in cell) for cell in cells]
    assert len(set((placed.weights * sizes).tolist())) == 1
    for size in set(sizes):
        alike = placed.loads[np.array(sizes) == size].tolist()
        assert alike == sorted(alike, reverse=True)


@given(uneven_problems(), st.randoms(use_true_random=False))
def test_unequal_cells_are_as_even_from_any_order(
    problem: tuple[list[int], list[int]], rng: object
) -> None:
    """Swaps do no harm, nothing beats the bound, and the sequences' order does not matter."""
    costs, sizes = problem
    placed, again = place(costs, sizes), place(costs, sizes)
    shuffled = list(costs)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]

    assert placed.bound <= _heaviest(placed) <= _heaviest(place(costs, sizes, max_rounds=0))
    np.testing.assert_array_equal(placed.cells, again.cells)
    np.testing.assert_array_equal(placed.loads, place(shuffled, sizes).loads)


@given(st.lists(st.integers(0, 50), min_size=6, max_size=6), st.sampled_from([[3, 2, 1], [4, 2]]))
def test_the_bound_is_below_every_placement(costs: list[int], sizes: list[int]) -> None:
    """Of all placements of six sequences none is below the bound, by exhaustive search."""
    weights = math.lcm(*sizes) // np.array(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    orders = np.array(list(itertools.permutations(costs)))
    loads = np.add.reduceat(orders, starts, axis=1) * weights

    assert lower_bound(np.array(costs), np.array(sizes), weights) <= loads.max(axis=1).min()


@given(
    st.lists(st.integers(0, 50), min_size=6, max_size=6),
    st.sampled_from([(2, 3), (3, 2), (6, 1)]),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
def test_the_bound_on_several_large_sequences_is_below_every_placement(
    costs: list[int], shape: tuple[int, int], capacities: list[int]
) -> None:
    """With equal cells, of any capacities, no placement is below it, by exhaustive search."""
    cells, size = shape
    weights = math.lcm(*capacities[:cells]) // np.array(capacities[:cells])
    orders = np.array(list(itertools.permutations(costs))).reshape(-1, cells, size)
    best = int((orders.sum(axis=2) * weights).max(axis=1).min())
    bound = lower_bound(np.array(costs), np.full(cells, size), weights)

    assert lower_bound(np.array(costs), np.full(cells, size), weights, largest=1) <= bound <= best


def test_the_bound_knows_that_two_large_sequences_share_the_small_ones() -> None:
    """Two sequences above the mean cell cannot both go with the smallest others."""
    costs, sizes, weights = np.array([100, 98, 0, 0, 9, 9]), np.full(2, 3), np.ones(2, dtype=int)

    assert lower_bound(costs, sizes, weights, largest=1) == 108
    assert (
        lower_bound(np.array([99, 99, 0, 0, 10, 10, 0, 0, 0]), np.full(3, 3), np.ones(3, int)) == 99
    )
    assert (
        lower_bound(np.array([50, 50, 1, 2, 3, 4, 5, 6, 7]), np.full(3, 3), np.ones(3, int)) == 55
    )
    assert place(np.array([50, 50, 1, 2, 3, 4, 5, 6, 7]), 3).loads.max() == 55


@given(problems())
def test_a_number_of_cells_means_cells_of_one_size(problem: tuple[list[int], int]) -> None:
    """Equal sizes one by one are the same placement as their number, and need no weights."""
    costs, cells = problem
    by_number, by_size = place(costs, cells), place(costs, [len(costs) // cells] * cells)

    np.testing.assert_array_equal(by_number.cells, by_size.cells)
    assert by_number.bound == by_size.bound
    assert set(by_number.weights.tolist()) == {1}


def test_the_bound_knows_a_sequence_too_large_to_even_out() -> None:
    """One sequence above the mean cell: with it go the smallest, and no better is possible."""
    costs = np.array([100, 7, 1, 2, 3, 4])

    assert place(costs, 2).bound == 103
    assert place(costs, 2).loads.max() == 103


def _long_tailed(sequences: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.lognormal(0, 1, sequences) * 1e9).astype(np.int64) for _ in range(50)]


@pytest.mark.parametrize(("sequences", "cells"), [(32, 4), (64, 8), (128, 16), (128, 8)])
def test_long_tails_come_out_even(sequences: int, cells: int) -> None:
    """Nine of ten steps are within 0.1 % of the bound, and none is 1 % above it."""
    placed = [place(costs, cells) for costs in _long_tailed(sequences)]

    above = np.array([_heaviest(each) / each.bound - 1 for each in placed])
    assert np.mean(above <= 0.001) >= 0.9
    assert above.max() < 0.01


def test_a_thousand_cells_come_out_even() -> None:
    """8,192 long-tailed sequences in 1,024 cells end within 0.1 % of the bound."""
    costs = (np.random.default_rng(0).lognormal(0, 1, 8192) * 1e9).astype(np.int64)
    placed = place(costs, 1024)

    assert _heaviest(placed) <= 1.001 * placed.bound


def test_a_smaller_pool_gets_its_share() -> None:
    """A pool of one CP group beside one of four is within 5 % of the bound on average."""
    placed = [place(costs, [4, 1] * 8) for costs in _long_tailed(40)]

    assert np.mean([_heaviest(each) / each.bound - 1 for each in placed]) < 0.05


@pytest.mark.parametrize("capacities", [[8000] * 7 + [4000], [7993, 8011, 7001, 8000] * 2])
def test_a_slow_pool_gets_less(capacities: list[int]) -> None:
    """Cells end as early as each other though some are slower, whatever the speeds' divisors."""
    for costs in _long_tailed(64)[:20]:
        placed = place(costs, 8, capacities=capacities)
        slowest = (placed.loads / capacities).max()

        assert slowest <= max(1.005 * costs.sum() / sum(capacities), 1.005 * _bound(placed))
        assert sorted(placed.order.tolist()) == list(range(64))


def _bound(placed: Placement) -> float:
    """The bound in cost per capacity."""
    return placed.bound / float((placed.weights * placed.capacities).mean())


@given(problems(), st.integers(2, 40))
def test_the_largest_costs_do_not_overflow(problem: tuple[list[int], int], bits: int) -> None:
    """Costs near the limit of int64, between cells of odd capacities, still fill every slot."""
    costs, cells = problem
    scaled = [cost << bits for cost in costs]
    if sum(scaled) >= 2**62:
        scaled = costs
    capacities = [999_983 + 7 * cell for cell in range(cells)]
    placed = place(scaled, cells, capacities=capacities)

    assert sorted(placed.order.tolist()) == list(range(len(costs)))
    assert placed.loads.tolist() == [sum(scaled[i] for i in cell) for cell in placed.cells]
    assert (placed.loads >= 0).all()


def test_a_slow_cell_is_the_one_with_more_for_each_slot() -> None:
    """Imbalance is of cost per slot: twice the cost in twice the slots is even."""
    assert place([1, 1, 1], [2, 1]).imbalance == 0.0
    assert place([3, 0, 0], [2, 1]).imbalance == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("costs", "cells", "match"),
    [
        ([1, 2, 3], 2, "cells=2"),
        ([1, 2, 3], [2, 2], r"cells=\[2, 2\]"),
        ([1, 2, 3], [3, 0], r"cells=\[3, 0\]"),
        ([1, 2, 3], [], r"cells=\[\]"),
        ([1, 2], "2", "cells='2'"),
        ([1, 2], None, "cells=None"),
        ([1, 2], [1.0, 1.0], r"cells=\[1.0, 1.0\]"),
        ([np.timedelta64(1, "s")], 1, "costs"),
        ([], 1, "costs"),
        ([1.5], 1, "costs"),
        (np.array([1], "m8[s]"), 1, "costs"),
        ([-1], 1, "costs"),
        ([1, 2, -3], 1, r"costs\[2\]=-3"),
        ([2**61, 2**61], 1, "costs: must sum to less than"),
    ],
)
def test_bad_problems_are_refused(costs: ArrayLike, cells: int | list[int], match: str) -> None:
    """What cannot be placed is an error that names the setting."""
    with pytest.raises(ValueError, match=match):
        place(costs, cells)


@pytest.mark.parametrize(
    "capacities", [[1], [1, 0], [1, 1, 1], [1.5, 2], [1, 2**31 - 1], [2**70, 2**70]]
)
def test_capacities_are_one_for_each_cell(capacities: list[float]) -> None:
    """Capacities that do not fit the cells, or are no integers, are an error that shows them."""
    with pytest.raises(ValueError, match="capacities="):
        place([1, 2], 2, capacities=capacities)  # type: ignore[arg-type]


@given(
    st.lists(st.sampled_from([0, 1, 2**58, 2**58 + 1, 2**58 - 1]), min_size=9, max_size=9),
    st.sampled_from([[3, 3, 3], [3, 2, 4], [2, 2, 2, 3]]),
    st.lists(st.integers(900, 1100), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter_where_low_bits_are_dropped(
    costs: list[int], sizes: list[int], capacities: list[int], rng: object
) -> None:
    """Costs that differ by a tick, too large to weigh exactly, go the same way from any order."""
    shuffled = list(costs)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    bears = capacities[: len(sizes)]
    placed, again = (place(each, sizes, capacities=bears) for each in (costs, shuffled))

    assert placed.loads.tolist() == again.loads.tolist()


def test_many_different_capacities_are_as_even_as_few() -> None:
    """A thousand pools, each of a speed of its own, end within 0.1 % of the bound."""
    rng = np.random.default_rng(0)
    costs = (rng.lognormal(0, 1, 8192) * 1e9).astype(np.int64)
    placed = place(costs, 1024, capacities=rng.permutation(np.arange(7500, 8524)).tolist())

    assert _heaviest(placed) <= 1.001 * placed.bound


@pytest.mark.parametrize("bits", [20, 24, 28])
def test_costs_near_the_limit_are_as_even_as_small_ones(bits: int) -> None:
    """Weights of odd capacities times the largest sums that are allowed do not wrap around."""
    capacities = [999_983, 1_000_003, 999_979, 1_000_033]
    for costs in _long_tailed(32)[:10]:
        most = 2**62 // int(costs.sum())
        scaled = costs * min(1 << bits, most - 1)
        small, large = (place(each, 4, capacities=capacities) for each in (costs, scaled))

        assert large.imbalance == pytest.approx(small.imbalance, abs=1e-3)
        assert large.bound_imbalance == pytest.approx(small.bound_imbalance, abs=1e-6)
        assert large.bound_imbalance <= large.imbalance + 1e-9


def test_cells_of_very_many_slots_are_placed_in_little_memory() -> None:
    """Two cells of a thousand slots come out even, though their exchanges would be a million."""
    costs = (np.random.default_rng(0).lognormal(0, 2, 2048) * 1e9).astype(np.int64)
    tracemalloc.start()
    placed = place(costs, 2)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert _heaviest(placed) <= 1.001 * placed.bound
    assert peak_bytes < 20 * 2**20
