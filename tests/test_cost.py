"""Costs are exact integers that keep the fitted coefficients' truth and never overflow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.attention.cost import TileCost, tile_features
from libra.attention.piece import Tail

MEBI = 1 << 20
coefficients = st.tuples(
    st.floats(0, 1e-3),
    st.floats(0, 1e-6),
    st.floats(0, 1e-6),
    st.floats(1e-13, 1e-7),
    st.floats(0, 1e-4),
    st.floats(0, 1e-6),
)
# From those that a block's jump or a long tile's rows dominate to those that are all pairs.
tail_coefficients = st.tuples(
    st.sampled_from([0.0, 1e-5, 1e-3]),
    st.sampled_from([0.0, 1e-8, 1e-6]),
    st.sampled_from([0.0, 1e-8, 1e-6]),
    st.sampled_from([0.0, 1e-13, 1e-9]),
    st.sampled_from([0.0, 1e-6, 1e-3]),
    st.sampled_from([0.0, 1e-8, 1e-4]),
).filter(lambda values: any(values[1:2] + values[3:4] + values[5:]) or values[4] > 0)


def test_features_count_a_causal_tile() -> None:
    """Rows 2..5 of a document read keys 0..i: 3 + 4 + 5 pairs; they start one block of 64."""
    np.testing.assert_array_equal(tile_features(2, 5), [1, 3, 5, 12, 1, 0])
    np.testing.assert_array_equal(tile_features(4, 4), [0, 0, 0, 0, 0, 0])


@given(begin=st.integers(0, MEBI), rows=st.integers(1, MEBI))
def test_blocks_and_long_tokens_depend_on_the_rows_alone(begin: int, rows: int) -> None:
    """A started block of 64 query rows counts whole, and so does each row beyond the 192nd."""
    *_, blocks, long_tokens = tile_features(begin, begin + rows).tolist()

    assert 64 * (blocks - 1) < rows <= 64 * blocks
    assert long_tokens == max(0, rows - 192)


@given(st.integers(0, MEBI), st.integers(0, MEBI), st.integers(0, MEBI))
def test_pairs_of_cut_documents_add_up(a: int, b: int, c: int) -> None:
    """Cutting a document along queries neither makes nor loses a causal pair."""
    low, middle, high = sorted((a, b, c))
    whole = tile_features(low, high)
    parts = tile_features([low, middle], [middle, high]).sum(axis=0)

    assert whole[1] == parts[1]
    assert whole[3] == parts[3]


@given(coefficients)
def test_integers_keep_the_coefficients(values: tuple[float, ...]) -> None:
    """A long tile's integer cost is off by half a unit a feature and a tick, 1 % of it at most."""
    cost = TileCost.from_seconds(values)
    features = tile_features(0, 65536)
    exact = float(features @ np.array(values))
    rounding = 2.0 ** -(cost.scale_bits + 1) * float(features.sum()) + cost.seconds_per_tick

    assert cost.seconds(features) == pytest.approx(exact, rel=1e-9, abs=rounding)
    assert rounding - cost.seconds_per_tick <= 0.01 * exact


@given(coefficients)
def test_costs_do_not_overflow_at_a_mebi_token(values: tuple[float, ...]) -> None:
    """8,192 sequences of one document of 1 Mi tokens sum to what Python's integers say."""
    cost = TileCost.from_seconds(values)
    features = tile_features(0, MEBI)
    exact = sum(int(c) * int(f) for c, f in zip(cost.coefficients, features, strict=True)) >> 20
    ticks = np.full(8192, cost.ticks(features))

    assert int(ticks[0]) == exact
    assert int(ticks.sum()) == exact * 8192
    assert exact * 8192 < 1 << 63


@given(values=coefficients, ends=st.lists(st.tuples(*[st.integers(0, MEBI)] * 2), max_size=20))
def test_the_ways_to_price_a_tile_agree(
    values: tuple[float, ...], ends: list[tuple[int, int]]
) -> None:
    """Ranks price tiles by arrays or one by one; to the tick it is what the features cost."""
    cost = TileCost.from_seconds(values)
    begins = np.array([min(pair) for pair in ends], dtype=np.int64)
    lasts = np.array([max(pair) for pair in ends], dtype=np.int64)
    ticks = cost.ticks(tile_features(begins, lasts)).tolist()

    assert cost.price(begins, lasts).tolist() == ticks
    assert [cost.price_one(min(pair), max(pair)) for pair in ends] == ticks


@given(
    values=coefficients, end=st.integers(2, MEBI), begin=st.integers(0, MEBI), more=st.integers(0)
)
def test_more_rows_never_cost_less(
    values: tuple[float, ...], end: int, begin: int, more: int
) -> None:
    """Every feature grows with a tail's rows and with a document's length: so does the price."""
    cost = TileCost.from_seconds(values)
    begin %= end
    earlier, later = begin - more % (begin + 1), end + more % 1000

    assert cost.price_one(earlier, end) >= cost.price_one(begin, end)
    assert cost.price_one(0, later) >= cost.price_one(0, end)


@given(
    values=tail_coefficients,
    row_end=st.integers(1, 6000),
    block_rows=st.sampled_from([1, 16, 32, 64, 100, 512]),
    wanted=st.floats(0, 1.2),
    room=st.floats(0, 1.5),
)
@settings(max_examples=200)
def test_the_tail_to_cut_off_is_found_exactly(
    values: tuple[float, ...], row_end: int, block_rows: int, wanted: float, room: float
) -> None:
    """The search that starts from a guess ends where trying every cut ends.

    Also where a cost jumps at blocks of rows, or bends where a tile becomes a long one.
    """
    tail = Tail(TileCost.from_seconds(values), row_end, 2, block_rows)
    whole = tail.ticks(0)
    ticks, most = 1 + int(wanted * whole), int(room * whole)
    cuts = [*range(0, row_end, block_rows), row_end]

    found = tail.nearest(ticks, most)

    enough = [cut for cut in cuts if tail.ticks(cut) >= ticks]
    fits = [cut for cut in cuts if tail.ticks(cut) <= most]
    wished = max(enough, default=0)
    expected = wished if ticks < most and tail.ticks(wished) <= most else min(fits)
    assert tail.ticks(found) == tail.ticks(expected)
    assert found == expected or tail.ticks(expected) == 0


@pytest.mark.parametrize(
    "bad",
    [
        (0.0, 0.0, 0.0, -1e-9, 0.0, 0.0),
        (0.0, 0.0, 0.0, 1e-9, 0.0, -1e-9),
        (float("nan"), 0, 0, 1e-9, 0, 0),
        (1e-9, 0, 0, 1e-9),
        (0, 0, 0, 1e30, 0, 0),
        (0, 0, 0, 0, 0, 0),
    ],
)
def test_bad_coefficients_are_refused(bad: tuple[float, ...]) -> None:
    """Negative, missing, absurd or non-finite coefficients never make a cost."""
    with pytest.raises(ValueError, match="coefficients"):
        TileCost.from_seconds(bad)
