"""Moment sums add up whatever the order, and sums that no calls can have are found out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libra.balancer.moments import NUM_SUMS, Moments
from libra.balancer.nonnegative import solve_nonnegative
from tests.cost_model_tiles import TRUTH, draw_tiles

Float64 = NDArray[np.float64]
RNG_SEEDS = st.integers(0, 2**32 - 1)
# Where the first places of the upper triangle of the gram matrix lie in the sums.
TILES_SQUARED, TILES_TIMES_PAIRS, QUERIES_SQUARED, PAIRS_SQUARED, PAIRS_SECONDS = 3, 6, 9, 18, 27


@given(seed=RNG_SEEDS, n=st.integers(0, 50), log_unit=st.floats(-13, -5))
@settings(max_examples=50, deadline=None)
def test_sums_of_real_observations_have_no_fault(seed: int, n: int, log_unit: float) -> None:
    """No honest report is refused: sums of real calls, at any pace or of none, have no fault."""
    rng = np.random.default_rng(seed)
    moments = Moments()
    for _ in range(3):
        features = draw_tiles(seed, n)
        moments.add(features, 10**log_unit * features[:, 3] * rng.lognormal(size=n))

    assert moments.fault() is None


@given(seed=RNG_SEEDS, parts=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_sums_add_up_over_calls_ranks_and_reports(seed: int, parts: int) -> None:
    """However calls are split and shuffled, the sums are the same but for their last digits."""
    rng = np.random.default_rng(seed)
    features = draw_tiles(seed, 60)
    seconds = features @ TRUTH * rng.lognormal(sigma=0.1, size=60)
    whole, split = Moments(), Moments()
    whole.add(features, seconds)

    for part in np.array_split(rng.permutation(60), parts):
        own = Moments()
        own.add(features[part], seconds[part])
        split.merge(own)

    np.testing.assert_allclose(split.sums, whole.sums, rtol=1e-12)


def test_weights_take_the_place_of_the_seconds() -> None:
    """A call of weight 2 is two calls of weight 1; one that weighs nothing is not there."""
    features, seconds = draw_tiles(1, 3), np.array([1.0, 2.0, 3.0])
    weighed, repeated, usual = Moments(), Moments(), Moments()
    weighed.add(features, seconds, [2.0, 1.0, 0.0])
    repeated.add(features[[0, 0, 1]], seconds[[0, 0, 1]], [1.0, 1.0, 1.0])
    usual.add(features, seconds)

    np.testing.assert_allclose(weighed.sums[2:], repeated.sums[2:], rtol=1e-12)
    assert (weighed.count, weighed.seconds) == (2, 3.0)
    np.testing.assert_allclose(usual.gram, (features / seconds[:, None]).T @ features)
    np.testing.assert_allclose(usual.projection, features.sum(axis=0))


@pytest.mark.parametrize(
    "place", [TILES_SQUARED, TILES_TIMES_PAIRS, QUERIES_SQUARED, PAIRS_SQUARED, PAIRS_SECONDS]
)
def test_sums_that_no_observations_can_have_are_found(place: int) -> None:
    """A gram matrix that is not positive semidefinite would poison the fit."""
    moments = Moments()
    moments.add(draw_tiles(4), draw_tiles(4) @ TRUTH)
    squared = place in (TILES_SQUARED, QUERIES_SQUARED, PAIRS_SQUARED)
    moments.sums[place] *= 0.01 if squared else 20.0

    assert moments.fault() == "the second moments are not positive semidefinite"


def test_a_rate_that_no_device_reaches_is_found() -> None:
    """One such call would outweigh all honest ones in the fit."""
    honest, absurd = Moments(), Moments()
    honest.add([1.0, 64.0, 64.0, 2080.0, 1.0, 0.0], 1e-7)
    absurd.add([1.0, 64.0, 64.0, 2.0**62, 1.0, 0.0], 1e-6)

    assert honest.fault() is None
    assert "of a feature a second" in (absurd.fault() or "")


def test_sums_without_observations_and_huge_sums_are_found() -> None:
    """Sums that are huge, not a number or of no observations are faults, each with its reason."""
    assert Moments([0.0] * (NUM_SUMS - 1) + [1.0]).fault() == "there are sums but no observations"
    assert "sums must lie in" in (Moments([1e61] * NUM_SUMS).fault() or "")
    assert "sums must lie in" in (Moments([float("nan")] * NUM_SUMS).fault() or "")
    with pytest.raises(ValueError, match=f"sums has 3 numbers: must have {NUM_SUMS}"):
        Moments([0.0] * 3)


@given(seed=RNG_SEEDS, unit=st.floats(1e-12, 1e3))
@settings(max_examples=30, deadline=None)
def test_sums_alone_give_the_non_negative_minimum(seed: int, unit: float) -> None:
    """No coefficient is negative, and none can be changed for the better: of a wave, of a kernel.

    The slope of the squared error is nothing where a coefficient is above zero, and else uphill.
    """
    rng = np.random.default_rng(seed)
    moments = Moments(num_features=2)
    features = rng.lognormal(sigma=2, size=(50, 2)) * [1.0, 1e6]
    moments.add(features, unit * rng.lognormal(size=50))

    found = solve_nonnegative(moments.gram, moments.projection)

    slope = (moments.gram @ found - moments.projection) / moments.projection
    assert (found >= 0).all()
    assert (slope >= -1e-6).all()
    np.testing.assert_allclose(slope[found > 0], 0.0, atol=1e-6)
