"""Many ranks, one model: each has a say, and none rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.attention.cost import tile_features
from libra.balancer.medians import lower_median
from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from libra.balancer.rank_moments import RankMoments
from tests.simulated_job import FORWARD, TRUTH

COST = TRUTH[FORWARD]
LENGTHS = np.array([1000, 2000, 4000, 8000, 16000])
SEEDS = st.integers(0, 2**32 - 1)


def told(
    world_size: int, seed: int, *, calls: int = 200, paces: dict[int, float] | None = None
) -> RankMoments:
    """Return the evidence of ranks that measured ``calls`` calls each with 3 % noise."""
    rng = np.random.default_rng(seed)
    ranks = RankMoments.empty(world_size)
    for rank in range(world_size):
        features = tile_features(0, rng.integers(16, 16384, calls)).astype(np.float64)
        seconds = features @ COST * np.exp(0.03 * rng.standard_normal(calls))
        add(ranks, rank, features, seconds * (paces or {}).get(rank, 1.0))
    return ranks


def add(ranks: RankMoments, rank: int, features: np.ndarray, seconds: np.ndarray) -> None:
    moments = Moments()
    moments.add(features, seconds)
    ranks.add(np.array([rank]), moments.sums[None], np.ones(1))


def prices(ranks: RankMoments, doubted: tuple[int, ...] = ()) -> np.ndarray:
    """Return the consensus' seconds of documents over the truth's."""
    mask = np.zeros(len(ranks.sums), dtype=bool)
    mask[list(doubted)] = True
    features = tile_features(0, LENGTHS).astype(np.float64)
    model = ranks.agree(QuadraticCostModel(), mask).model
    return np.asarray(model.predict(features) / (features @ COST))


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.floats(0.01, 100.0))
def test_a_ranks_pace_changes_no_coefficient(seed: int, pace: float) -> None:
    """However slow or fast one rank of four is, the model is the typical rank's."""
    ranks = told(4, seed, paces={2: pace})

    np.testing.assert_allclose(prices(ranks), 1.0, rtol=0.03)
    paces = ranks.agree(QuadraticCostModel(), np.zeros(4, dtype=bool)).paces
    assert paces[2] == pytest.approx(pace, rel=0.03)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_million_calls_of_one_rank_count_as_a_few(seed: int) -> None:
    """A rank with ever so many calls of another shape of costs moves prices by little."""
    ranks = told(4, seed)
    features = tile_features(0, LENGTHS).astype(np.float64)
    add(ranks, 1, features, features @ (COST * [3, 3, 3, 1, 3, 3]))
    ranks.sums[1] *= 1e6
    ranks.calls[1] *= 1e6

    consensus = ranks.agree(QuadraticCostModel(), np.zeros(4, dtype=bool))
    assert consensus.model.num_observations_ <= 7 * 205
    np.testing.assert_allclose(prices(ranks), 1.0, rtol=0.1)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_made_up_seconds_weigh_next_to_nothing(seed: int) -> None:
    """A rank whose seconds have nothing to do with its work leaves the model within 1 %."""
    honest, lying = told(4, seed), told(4, seed)
    rng = np.random.default_rng(seed)
    features = tile_features(0, rng.integers(16, 16384, 200)).astype(np.float64)
    lying.sums[3] = 0.0
    add(lying, 3, features, rng.lognormal(-4, 1, 200))

    expected = prices(honest, doubted=(3,))
    np.testing.assert_allclose(prices(lying), expected, rtol=0.01)
    np.testing.assert_allclose(prices(lying, doubted=(3,)), expected, rtol=1e-5)


def test_after_a_reset_the_newest_rules() -> None:
    """A reset scales what was known by the change, and new calls soon outweigh it."""
    ranks = told(2, 0)
    ranks.reset(1.3, 10.0)
    assert ranks.count == pytest.approx(10.0)
    np.testing.assert_allclose(prices(ranks), 1.3, rtol=0.03)

    newest = told(2, 1, paces={0: 2.0, 1: 2.0})
    ranks.sums += newest.sums
    np.testing.assert_allclose(prices(ranks), 2.0, rtol=0.05)


def test_of_two_ranks_the_faster_is_typical() -> None:
    """The lower of two middle values is the median: one slow rank of two is not typical."""
    assert lower_median(np.array([2.0, 1.0])) == 1.0
    np.testing.assert_allclose(prices(told(2, 0, paces={0: 2.0})), 1.0, rtol=0.03)
