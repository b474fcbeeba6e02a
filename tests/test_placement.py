"""Placement fills every slot once, is as even as its bound allows, and is the same everywhere."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.placement import Placement, lower_bound, place

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
    return place(costs, cells, max_swaps=0)


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

    assert placed.bound <= _heaviest(placed) <= _heaviest(place(costs, sizes, max_swaps=0))
    np.testing.assert_array_equal(placed.cells, again.cells)
    np.testing.assert_array_equal(placed.loads, place(shuffled, sizes).loads)


@given(st.lists(st.integers(0, 50), min_size=6, max_size=6), st.sampled_from([[3, 2, 1], [4, 2]]))
def test_the_bound_is_below_every_placement(costs: list[int], sizes: list[int]) -> None:
    """Of all placements of six sequences none is below the bound, by exhaustive search."""
    weights = math.lcm(*sizes) // np.array(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    orders = np.array(list(itertools.permutations(costs)))
    loads = np.add.reduceat(orders, starts, axis=1) * weights

    assert lower_bound(np.array(costs), sizes) <= loads.max(axis=1).min()


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

    assert lower_bound(costs, 2) == 103
    assert place(costs, 2).loads.max() == 103


def test_long_tails_come_out_even() -> None:
    """64 long-tailed sequences in 8 pools are within 0.5 % of the bound, 2 % at worst."""
    rng = np.random.default_rng(0)
    placed = [place((rng.lognormal(0, 1, 64) * 1e9).astype(np.int64), 8) for _ in range(50)]

    above = [each.loads.max() / each.bound - 1 for each in placed]
    assert np.mean(above) < 0.005
    assert max(above) < 0.02


def test_a_smaller_pool_gets_its_share() -> None:
    """A pool of one CP group beside one of four is within 5 % of the bound on average."""
    rng = np.random.default_rng(0)
    sizes = [4, 1] * 8
    placed = [place((rng.lognormal(0, 1, 40) * 1e9).astype(np.int64), sizes) for _ in range(50)]

    assert np.mean([_heaviest(each) / each.bound - 1 for each in placed]) < 0.05


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
        ([], 1, "costs"),
        ([1.5], 1, "costs"),
        ([-1], 1, "costs"),
        ([2**62, 2**62], 1, "costs"),
        ([2**61, 2**61, 2**61], [1, 2], "costs: must sum to less than"),
    ],
)
def test_bad_problems_are_refused(costs: list[float], cells: int | list[int], match: str) -> None:
    """What cannot be placed is an error that names the setting."""
    with pytest.raises(ValueError, match=match):
        place(costs, cells)
