"""The cost model finds what was planted, says how sure it is, and never says nonsense."""

import pickle
import warnings
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from libra.attention.cost import tile_features
from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from libra.balancer.nonnegative import PRIOR_SECONDS, solve
from tests.cost_model_tiles import TRUTH, draw_tiles, readings

Float64 = NDArray[np.float64]
RNG_SEEDS = st.integers(0, 2**32 - 1)
EXPECTED_FAILED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "without sample_weight an observation weighs 1 / seconds, not 1"
    ),
}
SKIPPED = {
    "check_array_api_input": "scikit-learn skips it unless SCIPY_ARRAY_API is set",
}


def coefficients() -> st.SearchStrategy[Float64]:
    """Planted non-negative coefficients, each term from nothing to dominant."""
    weights = st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(lambda w: max(w) > 0.01)
    typical = np.array([1e-4, 1e-6, 1e-6, 1e-8, 1e-5, 1e-6])
    return weights.map(lambda w: np.where(np.array(w) < 0.01, 0.0, np.array(w)) * typical)


@given(truth=coefficients(), seed=RNG_SEEDS)
@settings(max_examples=30, deadline=None)
def test_recovers_planted_coefficients(truth: Float64, seed: int) -> None:
    """From exact timings the fit finds what each feature costs, be it nothing."""
    features = draw_tiles(seed)

    model = QuadraticCostModel().fit(features, features @ truth)

    assert model.source_ == "measured"
    np.testing.assert_allclose(model.predict(features), features @ truth, rtol=1e-3)
    share = features.sum(axis=0) / float((features @ truth).sum())
    np.testing.assert_allclose(model.coef_ * share, truth * share, atol=0.01)


@given(truth=coefficients(), seed=RNG_SEEDS, parts=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_splitting_and_reordering_do_not_matter(truth: Float64, seed: int, parts: int) -> None:
    """The fit is the same however calls are spread over reports, and in any order."""
    rng = np.random.default_rng(seed)
    features = draw_tiles(seed, cut=False)
    seconds = features @ truth * np.exp(0.1 * rng.standard_normal(len(features)))
    whole = QuadraticCostModel().fit(features, seconds)
    split, points = QuadraticCostModel(), QuadraticCostModel()

    for part in np.array_split(rng.permutation(len(features)), parts):
        moments = Moments()
        moments.add(features[part], seconds[part])
        split.merge(moments)
        points.partial_fit(features[part], seconds[part])

    np.testing.assert_allclose(split.predict(features), whole.predict(features), rtol=1e-6)
    np.testing.assert_allclose(points.predict(features), whole.predict(features), rtol=1e-6)


@given(seed=RNG_SEEDS, noise=st.floats(0, 3), log_unit=st.floats(-7, 2))
@settings(max_examples=50, deadline=None)
def test_never_negative_and_more_rows_never_cost_less(
    seed: int, noise: float, log_unit: float
) -> None:
    """However noisy the readings, and also where they have nothing to do with the features."""
    features = draw_tiles(seed, n=60)
    seconds = 10**log_unit * np.exp(noise * np.random.default_rng(seed).standard_normal(60))
    rows = np.arange(1, 4000, 7)

    model = QuadraticCostModel().fit(features, seconds)
    low, high = model.predict_interval(features)

    assert np.isfinite(model.coef_).all()
    assert (model.coef_ >= 0).all()
    assert (np.diff(model.predict(tile_features(0, rows))) >= 0).all()
    assert (np.diff(model.predict(tile_features(4000 - rows, 4000))) >= 0).all()
    assert (model.predict(features) > 0).all()
    assert (low >= 0).all()
    assert (low <= high).all()
    assert np.isfinite(high).all()


@given(log_unit=st.floats(-6, 2))
@settings(max_examples=20, deadline=None)
def test_scale_of_seconds_does_not_matter(log_unit: float) -> None:
    """A fit of slow kernels is the fit of fast ones, stretched, above the clock's grain."""
    features = draw_tiles(7)
    shape = features @ TRUTH
    seconds = shape / shape.min() * 10**log_unit

    predicted = QuadraticCostModel().fit(features, seconds).predict(features)

    np.testing.assert_allclose(predicted, seconds, rtol=1e-3)


def test_calls_from_a_tenth_of_a_microsecond_to_minutes_mix() -> None:
    """Nine decades in one fit: the big ones are not spoilt, nor the small by the big."""
    lengths = np.unique(np.geomspace(1, 1 << 20, 200).astype(np.int64))
    features = tile_features(0, lengths).astype(np.float64)
    seconds = features @ np.array([1e-7, 1e-9, 1e-9, 2e-10, 1e-8, 1e-9])

    model = QuadraticCostModel(seconds_floor=1e-8).fit(features, seconds)

    assert seconds.min() < 2e-7
    assert seconds.max() > 100
    np.testing.assert_allclose(model.predict(features), seconds, rtol=0.01)


def test_uncut_tiles_share_the_collinear_coefficient() -> None:
    """Query and key tokens are equal as long as no tile is cut; the answer is unique even so.

    What cannot be told apart is known together, and not by itself.
    """
    features = draw_tiles(3, cut=False)
    truth = np.array([0.0, 2e-6, 0.0, 1e-8, 0.0, 0.0])
    model = QuadraticCostModel().fit(features, readings(features, noise=0.02, seed=0, truth=truth))

    assert model.coef_[1] == pytest.approx(model.coef_[2], rel=1e-2)
    tail, whole = tile_features(30000, 30100), tile_features(0, 2048)
    (tail_seconds, whole_seconds), (tail_std, whole_std) = model.predict(
        [tail, whole], return_std=True
    )
    assert whole_std < 0.05 * whole_seconds
    assert tail_std > 0.1 * tail_seconds
    assert model.coef_std_[1] > 0.2 * 2e-6


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize("n", [40, 300])
def test_intervals_hold_what_they_promise(n: int, noise: float, cut: bool) -> None:
    """Of 95 % intervals of new readings 90 to 98 % hold, also where columns are collinear."""
    held = []
    for seed in range(60):
        features = draw_tiles(seed, n, cut=cut)
        model = QuadraticCostModel().fit(features, readings(features, noise=noise, seed=seed))
        fresh = draw_tiles(1000 + seed, 100, cut=cut)
        seconds = readings(fresh, noise=noise, seed=1000 + seed)
        low, high = model.predict_interval(fresh, level=0.95)
        held.append(np.mean((low <= seconds) & (seconds <= high)))

    assert 0.90 <= np.mean(held) <= 0.98


def test_the_noise_is_what_was_planted() -> None:
    """The relative scatter of readings is found, and the interval's width follows it."""
    features = draw_tiles(11, 2000)
    noisy = QuadraticCostModel().fit(features, readings(features, noise=0.08, seed=3))

    assert noisy.noise_ == pytest.approx(0.08, rel=0.25)
    assert "2000 observations" in noisy.why_


def test_what_was_never_seen_is_said_to_be_uncertain() -> None:
    """Documents below 192 tokens tell nothing of what a long tile's rows cost."""
    short = draw_tiles(2, most=190)
    model = QuadraticCostModel().fit(short, readings(short, noise=0.02, seed=1))

    tiles = np.array([tile_features(0, 100), tile_features(0, 20000), tile_features(0, 100)])
    tiles[2, 5] = 1
    seconds, std = model.predict(tiles, return_std=True)

    assert std[0] < 0.1 * seconds[0]
    assert (std[1:] > seconds[1:]).all()
    assert model.coef_std_[5] == np.inf


def test_prior_speaks_until_there_is_evidence() -> None:
    """Until 40 calls are measured cost follows causal pairs alone, and the model says so."""
    model = QuadraticCostModel(min_observations=40)
    features = draw_tiles(1, n=40)
    seconds = features @ np.array([0.0, 0.0, 0.0, 3e-9, 0.0, 0.0])

    sources = [model.source_]
    assert model.coef_.tolist() == [0, 0, 0, PRIOR_SECONDS, 0, 0]
    assert model.why_ == "Cost is taken to be proportional to causal pairs: 0 of 40 observations."
    sources.append(model.partial_fit(features[:39], seconds[:39]).source_)
    assert model.coef_.tolist() == pytest.approx([0, 0, 0, 3e-9, 0, 0])
    predicted, std = model.predict(features, return_std=True)
    assert std.tolist() == pytest.approx(predicted.tolist())
    sources.append(model.partial_fit(features[39:], seconds[39:]).source_)

    assert sources == ["prior", "prior", "measured"]


def test_calls_of_one_shape_tell_nothing_of_others() -> None:
    """However many, they price their own shape; others follow causal pairs, and it is said."""
    features = np.repeat(tile_features([0], [2048]), 300, axis=0).astype(np.float64)
    features *= np.random.default_rng(0).integers(1, 9, (300, 1))
    model = QuadraticCostModel().fit(features, readings(features, noise=0.03, seed=0))

    sources = [model.source_]
    assert model.is_calibrated_
    assert "all 300 observations have one shape" in model.why_
    assert model.predict(features[:1]) == pytest.approx(features[:1] @ TRUTH, rel=0.02)
    undetermined = solve(model.moments_, 3, 300).coefficients
    assert undetermined[3] == pytest.approx(model.coef_[3], rel=0.02)
    model.partial_fit(draw_tiles(0, 20), draw_tiles(0, 20) @ TRUTH)
    assert [*sources, model.source_] == ["prior", "measured"]


def test_forty_readings_are_enough_in_nine_of_ten_orders() -> None:
    """From nothing, with 5 % noise and one reading in a hundred three times too long.

    The error is of held-out tiles, weighted by their cost.
    """
    tiles, orders = draw_tiles(0, 140, most=12288), 200
    good = 0
    for seed in range(orders):
        rng = np.random.default_rng(seed)
        mixed = rng.permutation(140)
        features, held_out = tiles[mixed[:40]], tiles[mixed[40:]]
        seconds = readings(features, noise=0.05, seed=seed) * (1 + 2 * (rng.random(40) < 0.01))
        predicted = QuadraticCostModel().fit(features, seconds).predict(held_out)
        exact = held_out @ TRUTH
        good += np.abs(predicted - exact).sum() <= 0.05 * exact.sum()

    assert good >= 0.9 * orders


def test_four_columns_are_those_of_calls_whose_tiles_are_alike() -> None:
    """Blocks and long tokens follow from the rows of a tile; fits and prices are the same."""
    tiles = np.random.default_rng(0).integers(1, 9, (200, 1))
    six = draw_tiles(5) * tiles
    seconds = readings(six, noise=0.02, seed=5)
    by_four = QuadraticCostModel().fit(six[:, :4], seconds)
    by_six = QuadraticCostModel().fit(six, seconds)

    np.testing.assert_allclose(by_four.coef_, by_six.coef_, rtol=1e-9)
    np.testing.assert_allclose(by_four.predict(six), by_six.predict(six[:, :4]), rtol=1e-9)


def test_given_weights_replace_those_by_seconds() -> None:
    """A reading of weight nothing is not learned from, whatever it says."""
    features = draw_tiles(8)
    seconds = features @ TRUTH
    wrong = np.where(np.arange(200) < 50, 100 * seconds, seconds)

    model = QuadraticCostModel().fit(features, wrong, sample_weight=np.arange(200) >= 50)
    weighed = QuadraticCostModel().fit(features, seconds, sample_weight=1 / seconds)

    assert model.num_observations_ == 150
    np.testing.assert_allclose(model.predict(features), seconds, rtol=1e-3)
    usual = QuadraticCostModel().fit(features, seconds).predict(features)
    np.testing.assert_allclose(weighed.predict(features), usual, rtol=1e-6)


def test_forgetting_follows_a_change_and_age_commutes() -> None:
    """Kernels became twice as slow 600 steps later; the order of merging is of no account."""
    features = draw_tiles(5)
    old, new = Moments(), Moments()
    old.add(features, features @ TRUTH)
    new.add(features, features @ (2 * TRUTH))
    in_order = QuadraticCostModel(half_life_steps=100).merge(old).forget(600).merge(new)
    reverse = QuadraticCostModel(half_life_steps=100).merge(new).merge(old, age_steps=600)

    assert in_order.predict(features) == pytest.approx(features @ (2 * TRUTH), rel=0.05)
    np.testing.assert_allclose(in_order.moments_.sums, reverse.moments_.sums, rtol=1e-12)


def test_a_kernel_that_is_no_longer_called_keeps_its_fit() -> None:
    """A kernel that is no longer called keeps its fit, however many steps pass."""
    features = draw_tiles(5)
    model = QuadraticCostModel(half_life_steps=1)
    model.fit(features, readings(features, noise=0.05, seed=5))
    before, std = model.predict(features, return_std=True)

    model.forget(1e9).merge(Moments())
    after, grown_std = model.predict(features, return_std=True)

    assert model.source_ == "measured"
    np.testing.assert_allclose(after, before, rtol=1e-3)
    assert (grown_std > std).all()


def test_memory_is_constant_and_the_fit_is_a_function_of_the_sums() -> None:
    """A model of a million calls is as large as one of forty, and one from its sums its twin."""
    features = draw_tiles(6, 40)
    seconds = readings(features, noise=0.05, seed=6)
    model = QuadraticCostModel().fit(features, seconds)
    size = len(pickle.dumps(model))
    for _ in range(25):
        model.partial_fit(np.tile(features, (1000, 1)), np.tile(seconds, 1000))
    twin = QuadraticCostModel.from_moments(model.moments_, model.num_observations_)

    assert len(pickle.dumps(model)) <= size + 64
    assert model.num_observations_ == 1_000_040
    np.testing.assert_array_equal(twin.coef_, model.coef_)


def test_is_a_scikit_learn_regressor() -> None:
    """The model can be scored, cloned without what it learned, and pickled with it."""
    features = draw_tiles(2)
    seconds = features @ TRUTH
    model = QuadraticCostModel(half_life_steps=50).fit(features, seconds)

    fresh = cast(QuadraticCostModel, clone(model))
    revived = pickle.loads(pickle.dumps(model))

    assert model.score(features, seconds) > 0.999
    assert fresh.get_params() == {
        "min_observations": 20,
        "half_life_steps": 50,
        "seconds_floor": 1e-6,
    }
    assert fresh.num_observations_ == 0
    assert fresh.moments_.count == 0
    np.testing.assert_array_equal(revived.predict(features), model.predict(features))


@pytest.mark.parametrize("min_observations", [1, 40])
def test_passes_scikit_learns_own_checks(min_observations: int) -> None:
    """Prior and fit pass them all but for those named above, each with its reason."""
    model = QuadraticCostModel(min_observations=min_observations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = check_estimator(
            model, expected_failed_checks=EXPECTED_FAILED, on_skip=None, on_fail=None
        )

    found = {check["check_name"]: (check["status"], check["exception"]) for check in checks}
    assert len(found) > 40
    missed = {name: why for name, (status, why) in found.items() if status == "failed"}
    assert missed == {}
    assert {name for name, (status, _) in found.items() if status == "xfail"} == {*EXPECTED_FAILED}
    assert {name for name, (status, _) in found.items() if status == "skipped"} <= {*SKIPPED}


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
    with pytest.raises(ValueError, match="sample_weight: must be"):
        model.partial_fit(features, np.ones(3), np.array([1.0, bad, 1.0]))
    with pytest.raises(ValueError, match="X has 3 features, but"):
        model.predict(features[:, :3])
    with pytest.raises(ValueError, match="moments are of 2 features: must be of 6"):
        model.merge(Moments(num_features=2))
    with pytest.raises(ValueError, match="level=1: must be"):
        model.predict_interval(features, level=1)
    with pytest.raises(ValueError, match="seconds_floor=0: must be"):
        QuadraticCostModel(seconds_floor=0).fit(features, np.ones(3))
    assert model.num_observations_ == 0
