"""Costs are exact integers that keep the fitted coefficients' truth and never overflow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.attention.cost import TileCost, tile_features

MEBI = 1 << 20
coefficients = st.tuples(
    st.floats(0, 1e-3), st.floats(0, 1e-6), st.floats(0, 1e-6), st.floats(1e-13, 1e-7)
)


def test_features_count_a_causal_tile() -> None:
    """Rows 2..5 of a document read keys 0..i: 3 + 4 + 5 pairs."""
    np.testing.assert_array_equal(tile_features(2, 5), [1, 3, 5, 12])
    np.testing.assert_array_equal(tile_features(4, 4), [0, 0, 0, 0])


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


@pytest.mark.parametrize(
    "bad", [(0.0, 0.0, 0.0, -1e-9), (float("nan"), 0, 0, 1e-9), (1e-9, 0, 0), (0, 0, 0, 1e30)]
)
def test_bad_coefficients_are_refused(bad: tuple[float, ...]) -> None:
    """Negative, missing, absurd or non-finite coefficients never make a cost."""
    with pytest.raises(ValueError, match="coefficients"):
        TileCost.from_seconds(bad)
