"""Other ways to place keep every sequence and document, and do what their descriptions say."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.comparators import (
    karmarkar_karp,
    least_load,
    longest_first,
    random_cells,
    swapped,
    token_balanced,
)
from benchmarks.dynamic_cp import CpGroup, group_rounds, rank_loads, ranks_needed
from benchmarks.wlb_packing import Document, WlbPacking, WlbSettings

Int64 = NDArray[np.int64]

WAYS = ("random", "token-balanced", "longest first", "Karmarkar-Karp", "with swaps")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Int64, int]:
    """Costs of cells times slots sequences, and the number of cells."""
    cells, slots = draw(st.tuples(st.integers(1, 8), st.integers(1, 6)))
    size = cells * slots
    costs = draw(st.lists(st.integers(0, 10**12), min_size=size, max_size=size))
    return np.array(costs, dtype=np.int64), cells


def _placed(name: str, costs: Int64, cells: int) -> Int64:
    if name == "random":
        return random_cells(costs, cells, np.random.default_rng(0))
    if name == "token-balanced":
        return token_balanced(np.full(len(costs), 4096), cells)
    if name == "longest first":
        return longest_first(costs, cells)
    start = karmarkar_karp(costs, cells)
    return start if name == "Karmarkar-Karp" else swapped(start, costs, 16)


@pytest.mark.parametrize("name", WAYS)
@given(problems())
def test_every_sequence_is_in_one_cell_of_equal_count(
    name: str, problem: tuple[Int64, int]
) -> None:
    """Each way puts each sequence into exactly one cell, P into each, and beats no bound."""
    costs, cells = problem
    placed = _placed(name, costs, cells)

    assert placed.shape == (cells, len(costs) // cells)
    assert sorted(placed.reshape(-1).tolist()) == list(range(len(costs)))
    assert costs[placed].sum(axis=1).max() >= least_load(costs, cells)


@given(problems(), st.integers(0, 20))
def test_swaps_never_raise_the_heaviest_cell(problem: tuple[Int64, int], swaps: int) -> None:
    """Whatever the start and their number, swaps leave it no heavier."""
    costs, cells = problem
    start = random_cells(costs, cells, np.random.default_rng(1))

    after = swapped(start, costs, swaps)

    assert costs[after].sum(axis=1).max() <= costs[start].sum(axis=1).max()


def test_swaps_are_counted() -> None:
    """Each moves one pair out of the heaviest cell; two even these cells, and then it ends."""
    costs = np.array([9, 9, 9, 1, 1, 1, 1, 1, 1])
    start = np.arange(9).reshape(3, 3)

    loads = [costs[swapped(start, costs, swaps)].sum(axis=1).tolist() for swaps in (0, 1, 2, 9)]

    assert loads == [[27, 3, 3], [19, 11, 3], [11, 11, 11], [11, 11, 11]]


def test_longest_first_and_differencing_are_the_published_ones() -> None:
    """Longest first leaves 19 beside 17 where differencing finds 18 beside 18."""
    costs = np.array([8, 7, 6, 5, 4, 2, 2, 2])

    assert sorted(costs[longest_first(costs, 2)].sum(axis=1).tolist()) == [17, 19]
    assert costs[karmarkar_karp(costs, 2)].sum(axis=1).tolist() == [18, 18]


def test_cells_of_unequal_count_are_refused() -> None:
    """Comparators know equal counts only, and say so."""
    with pytest.raises(ValueError, match="batch=7: must be a multiple"):
        longest_first(np.arange(7), 2)


steps_of_documents = st.lists(
    st.lists(st.integers(1, 100), min_size=0, max_size=30), min_size=1, max_size=6
)


def _drawn(lengths: list[int], step: int) -> list[Document]:
    return [Document(length, step, index) for index, length in enumerate(lengths)]


@given(steps_of_documents, st.integers(1, 4), st.sampled_from([(), (40,), (20, 60)]))
def test_wlb_packing_loses_and_doubles_no_document(
    steps: list[list[int]], micro_batches: int, thresholds: tuple[int, ...]
) -> None:
    """What was drawn is trained on once, no earlier than drawn, or still waits."""
    settings = WlbSettings(micro_batches=micro_batches, max_tokens=120, thresholds=thresholds)
    packing = WlbPacking(settings, np.square)
    seen: list[Document] = []
    for number, lengths in enumerate(steps):
        batches = packing.pack(_drawn(lengths, number))
        trained = [own for batch in batches for own in batch]
        seen += trained

        assert len(batches) == micro_batches
        assert all(sum(own.length for own in batch) <= 120 for batch in batches)
        assert all(own.step <= number for own in trained)

    drawn = [own for number, lengths in enumerate(steps) for own in _drawn(lengths, number)]
    assert Counter(seen + packing.waiting) == Counter(drawn)


def test_an_outlier_waits_for_one_of_its_kind_for_every_micro_batch() -> None:
    """Long documents come when there is one for each micro-batch, first drawn first."""
    settings = WlbSettings(micro_batches=2, max_tokens=120, thresholds=(50,))
    packing = WlbPacking(settings, np.square)

    first = packing.pack(_drawn([60, 10, 10], 0))
    second = packing.pack(_drawn([70, 80], 1))

    assert [own.length for batch in first for own in batch] == [10, 10]
    assert [[tuple(own) for own in batch] for batch in second] == [[(70, 1, 0)], [(60, 0, 0)]]
    assert packing.waiting == [Document(80, 1, 1)]


def test_without_a_queue_only_what_has_no_room_waits() -> None:
    """Work is evened over micro-batches, and the rest comes first in the next step."""
    packing = WlbPacking(WlbSettings(micro_batches=2, max_tokens=100), np.square)

    first = packing.pack(_drawn([90, 80, 40, 20, 10], 0))
    second = packing.pack([])

    assert [[own.length for own in batch] for batch in first] == [[90, 10], [80, 20]]
    assert [[own.length for own in batch] for batch in second] == [[40], []]


def test_work_decides_and_not_tokens() -> None:
    """The last document goes where work is least, though more tokens are there."""
    packing = WlbPacking(WlbSettings(micro_batches=2, max_tokens=200), np.square)

    batches = packing.pack(_drawn([90, 50, 50, 10], 0))

    assert [[own.length for own in batch] for batch in batches] == [[90], [50, 50, 10]]


def test_a_document_that_fits_nowhere_is_refused() -> None:
    """It would wait for ever."""
    packing = WlbPacking(WlbSettings(micro_batches=1, max_tokens=10), np.square)

    with pytest.raises(ValueError, match="length=11: must be at most 10"):
        packing.pack(_drawn([11], 0))


@given(
    st.lists(st.integers(1, 800), min_size=1, max_size=60),
    st.sampled_from([1, 2, 6, 8, 16]),
    st.integers(1, 4),
)
def test_dynamic_cp_groups_hold_every_sample_once(
    lengths: list[int], ranks: int, plenty: int
) -> None:
    """Groups are powers of two, wide enough for their samples, and fit the ranks."""
    widest = 1 << ranks.bit_length() - 1
    tokens_per_rank = -(-max(lengths) // widest) * plenty
    work = [float(length) ** 2 for length in lengths]

    rounds = group_rounds(lengths, work, ranks, tokens_per_rank)

    groups = [own for groups in rounds for own in groups]
    placed = [sample for own in groups for sample in own.samples]
    assert sorted(placed) == list(range(len(lengths)))
    assert all(own.size & (own.size - 1) == 0 for own in groups)
    assert all(sum(own.size for own in part) <= ranks for part in rounds)
    assert all(
        lengths[sample] <= own.size * tokens_per_rank for own in groups for sample in own.samples
    )
    assert rank_loads(rounds, ranks).sum() == pytest.approx(sum(work))


def test_dynamic_cp_gives_a_long_sample_more_ranks() -> None:
    """A sample of twice a rank's tokens takes two ranks; free ranks are not left idle."""
    assert [ranks_needed(length, 10) for length in (1, 10, 11, 20, 21, 41)] == [1, 1, 2, 2, 4, 8]
    assert group_rounds([20], [400.0], 8, 10) == [[CpGroup(size=8, samples=[0], work=400.0)]]


def test_dynamic_cp_ends_a_round_when_ranks_are_even() -> None:
    """Samples that would only unbalance even ranks come in the next round."""
    lengths = [20, 10, 10, 1]
    # The long one on two ranks carries 100 a rank, as the two short ones do.
    rounds = group_rounds(lengths, [200.0, 100.0, 100.0, 1.0], 4, 10)

    assert [sorted(sample for own in part for sample in own.samples) for part in rounds] == [
        [0, 1, 2],
        [3],
    ]


def test_dynamic_cp_refuses_a_sample_that_all_ranks_cannot_hold() -> None:
    """The message says how many ranks it needs."""
    with pytest.raises(ValueError, match="length=100: needs 16 of 8 ranks"):
        group_rounds([100], [1.0], 8, 10)
