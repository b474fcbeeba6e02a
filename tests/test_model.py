"""The cost model finds what was planted, whatever the order, and never says nonsense."""

import pickle
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone

from libra.attention.cost import tile_features
from libra.balancer.model import PRIOR_SECONDS_PER_PAIR, QuadraticCostModel
from libra.balancer.moments import NUM_SUMS, Moments

Float64 = NDArray[np.float64]
RNG_SEEDS = st.integers(0, 2**32 - 1)


def draw_tiles(seed: int, n: int = 200, *, cut: bool = True) -> Float64:
    """Return features [n, F] of tiles of up to 64 Ki tokens, tails of documents if ``cut``."""
    rng = np.random.default_rng(seed)
    ends = np.exp(rng.uniform(np.log(16), np.log(65536), n)).astype(np.int64)
    begins = (ends * rng.uniform(0, 0.9, n)).astype(np.int64) if cut else np.zeros(n, np.int64)
    return tile_features(begins, ends).astype(np.float64)


def coefficients() -> st.SearchStrategy[Float64]:
    """Planted non-negative coefficients, each term from nothing to dominant."""
    weights = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: max(w) > 0.01)
    typical = np.array([1e-4, 1e-6, 1e-6, 1e-8])
    return weights.map(lambda w: np.where(np.array(w) < 0.01, 0.0, np.array(w)) * typical)


@given(truth=coefficients(), seed=RNG_SEEDS)
@settings(max_examples=30, deadline=None)
def test_recovers_planted_coefficients(truth: Float64, seed: int) -> None:
    """From exact timings the fit finds what each feature costs, be it nothing."""
    features = draw_tiles(seed)

    model = QuadraticCostModel().fit(features, features @ truth)

    assert model.source_ == "measured"
    np.testing.assert_allclose(model.predict(features), features @ truth, rtol=1e-3)
    np.testing.assert_allclose(model.coef_, truth, rtol=1e-2, atol=1e-3 * truth.max())


@given(truth=coefficients(), seed=RNG_SEEDS, parts=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_splitting_and_reordering_do_not_matter(truth: Float64, seed: int, parts: int) -> None:
    """The fit is the same however calls are spread over reports, and in any order."""
    rng = np.random.default_rng(seed)
    features = draw_tiles(seed, cut=False)
    seconds = features @ truth * np.exp(0.1 * rng.standard_normal(len(features)))
    whole = QuadraticCostModel().fit(features, seconds)
    split = QuadraticCostModel()

    for part in np.array_split(rng.permutation(len(features)), parts):
        moments = Moments()
        moments.add(features[part], seconds[part])
        split.merge(moments)

    np.testing.assert_allclose(split.predict(features), whole.predict(features), rtol=1e-6)


@given(seed=RNG_SEEDS, noise=st.floats(0, 3), log_unit=st.floats(-7, 2))
@settings(max_examples=50, deadline=None)
def test_never_negative_from_microseconds_to_minutes(
    seed: int, noise: float, log_unit: float
) -> None:
    """However noisy the readings, and also where they have nothing to do with the features."""
    features = draw_tiles(seed, n=60)
    seconds = 10**log_unit * np.exp(noise * np.random.default_rng(seed).standard_normal(60))

    model = QuadraticCostModel().fit(features, seconds)

    assert np.isfinite(model.coef_).all()
    assert (model.coef_ >= 0).all()
    assert (model.predict(features) > 0).all()


@given(log_unit=st.floats(-6, 2))
@settings(max_examples=20, deadline=None)
def test_scale_of_seconds_does_not_matter(log_unit: float) -> None:
    """A fit of slow kernels is the fit of fast ones, stretched, above the clock's grain."""
    features = draw_tiles(7)
    shape = features @ np.array([1e-4, 1e-6, 1e-6, 1e-8])
    seconds = shape / shape.min() * 10**log_unit

    predicted = QuadraticCostModel().fit(features, seconds).predict(features)

    np.testing.assert_allclose(predicted, seconds, rtol=1e-3)


def test_uncut_tiles_share_the_collinear_coefficient() -> None:
    """Query and key tokens are equal as long as no tile is cut; the answer is unique even so."""
    features = draw_tiles(3, cut=False)
    model = QuadraticCostModel().fit(features, features @ np.array([0.0, 2e-6, 0.0, 1e-8]))

    assert model.coef_[1] == pytest.approx(model.coef_[2], rel=1e-3)
    assert model.coef_[1] + model.coef_[2] == pytest.approx(2e-6, rel=1e-3)


def test_prior_speaks_until_there_is_evidence() -> None:
    """Until 40 calls are measured cost follows causal pairs alone, and the model says so."""
    model = QuadraticCostModel(min_observations=40)
    features = draw_tiles(1, n=40)
    seconds = features @ np.array([0.0, 0.0, 0.0, 3e-9])

    sources = [model.source_]
    assert model.coef_.tolist() == [0, 0, 0, PRIOR_SECONDS_PER_PAIR]
    sources.append(model.partial_fit(features[:39], seconds[:39]).source_)
    assert model.coef_.tolist() == pytest.approx([0, 0, 0, 3e-9])
    sources.append(model.partial_fit(features[39:], seconds[39:]).source_)

    assert sources == ["prior", "prior", "measured"]


def test_forgetting_follows_a_change_and_age_commutes() -> None:
    """Kernels became twice as slow 600 steps later; the order of merging is of no account."""
    features = draw_tiles(5)
    old, new = Moments(), Moments()
    old.add(features, features @ np.array([1e-5, 1e-7, 1e-7, 1e-9]))
    new.add(features, features @ np.array([2e-5, 2e-7, 2e-7, 2e-9]))
    in_order = QuadraticCostModel(half_life_steps=100).merge(old).forget(600).merge(new)
    reverse = QuadraticCostModel(half_life_steps=100).merge(new).merge(old, age_steps=600)

    assert in_order.predict(features) == pytest.approx(
        features @ np.array([2e-5, 2e-7, 2e-7, 2e-9]), rel=0.05
    )
    np.testing.assert_allclose(in_order.moments_.sums, reverse.moments_.sums, rtol=1e-12)


def test_a_kernel_that_is_no_longer_called_keeps_its_fit() -> None:
    """A kernel that is no longer called keeps its fit, however many steps pass."""
    features = draw_tiles(5)
    model = QuadraticCostModel(half_life_steps=1).fit(features, features @ np.full(4, 1e-6))
    before = model.predict(features)

    model.forget(1e9).merge(Moments())

    assert model.source_ == "measured"
    np.testing.assert_allclose(model.predict(features), before, rtol=1e-6)


def test_is_a_scikit_learn_regressor() -> None:
    """The model can be scored, cloned without what it learned, and pickled with it."""
    features = draw_tiles(2)
    seconds = features @ np.array([1e-5, 1e-7, 1e-7, 1e-9])
    model = QuadraticCostModel(half_life_steps=50).fit(features, seconds)

    fresh = cast(QuadraticCostModel, clone(model))
    revived = pickle.loads(pickle.dumps(model))

    assert model.score(features, seconds) > 0.999
    assert fresh.get_params() == {"min_observations": 40, "half_life_steps": 50}
    assert fresh.num_observations_ == 0
    np.testing.assert_array_equal(revived.predict(features), model.predict(features))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_refuses_nonsense(bad: float) -> None:
    """Figures that cannot be true are refused before anything is learned from them."""
    features = draw_tiles(2, n=3)
    broken = features.copy()
    broken[1, 2] = bad
    model = QuadraticCostModel()

    with pytest.raises(ValueError, match="X: must be finite"):
        model.partial_fit(broken, np.ones(3))
    with pytest.raises(ValueError, match="y: must be finite"):
        model.partial_fit(features, np.array([1.0, bad, 1.0]))
    with pytest.raises(ValueError, match="X has shape"):
        model.predict(features[:, :3])
    assert model.num_observations_ == 0


@given(seed=RNG_SEEDS, n=st.integers(0, 50), log_unit=st.floats(-13, -5))
@settings(max_examples=50, deadline=None)
def test_sums_of_real_observations_have_no_fault(seed: int, n: int, log_unit: float) -> None:
    """No honest report is refused: sums of real calls, at any pace or of none, have no fault."""
    rng = np.random.default_rng(seed)
    moments = Moments()
    for _ in range(3):
        features = draw_tiles(seed, n)
        moments.add(features, 10**log_unit * features[:, -1] * rng.lognormal(size=n))

    assert moments.fault() is None


@pytest.mark.parametrize("place", [3, 4, 7, 12, 13, 16])
def test_sums_that_no_observations_can_have_are_found(place: int) -> None:
    """A gram matrix that is not positive semidefinite would poison the fit."""
    moments = Moments()
    moments.add(draw_tiles(4), draw_tiles(4) @ np.array([1e-5, 1e-7, 1e-7, 1e-9]))
    moments.sums[place] *= 0.01 if place in (3, 7, 12) else 20.0

    assert moments.fault() == "the second moments are not positive semidefinite"


def test_a_rate_that_no_device_reaches_is_found() -> None:
    """One such call would outweigh all honest ones in the fit."""
    honest, absurd = Moments(), Moments()
    honest.add([1.0, 64.0, 64.0, 2080.0], 1e-7)
    absurd.add([1.0, 64.0, 64.0, 2.0**62], 1e-6)

    assert honest.fault() is None
    assert "of a feature a second" in (absurd.fault() or "")


def test_sums_without_observations_and_huge_sums_are_found() -> None:
    """Sums that are huge, not a number or of no observations are faults, each with its reason."""
    assert Moments([0.0] * (NUM_SUMS - 1) + [1.0]).fault() == "there are sums but no observations"
    assert "sums must lie in" in (Moments([1e61] * NUM_SUMS).fault() or "")
    assert "sums must lie in" in (Moments([float("nan")] * NUM_SUMS).fault() or "")
