"""A policy is published only on enough evidence that it helps, and the reason has its numbers."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from libra.attention.cost import TileCost
from libra.balancer.decide import (
    DecideSettings,
    Decision,
    Evidence,
    KindEvidence,
    decide,
    policy_coefficients,
)
from libra.balancer.gains import predicted_gain, shape_change
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.speeds import RankSpeed

Float64 = NDArray[np.float64]
SETTINGS = DecideSettings(max_error=0.25, min_change=0.05, cooldown_steps=20)
COEFFICIENTS = np.array([1e-5, 1e-7, 1e-7, 1e-9])
FORWARD = KindEvidence(name="the forward kernel", observations=400, error=0.05)


def home_features(spread: float = 0.8, *, steps: int = 8, ranks: int = 4) -> Float64:
    """Return [S, W, F] of sequences with equal tokens and unequal pairs."""
    rng = np.random.default_rng(0)
    features = np.zeros((steps, ranks, 4))
    features[..., 0] = 10
    features[..., 1:3] = 16384
    features[..., 3] = 1e8 * np.exp(spread * rng.standard_normal((steps, ranks)))
    return features


def evidence(**changes: object) -> Evidence:
    base = Evidence(
        kinds=[FORWARD, replace(FORWARD, name="the backward kernel")],
        coefficients=COEFFICIENTS,
        home_features=home_features(),
        speeds=[RankSpeed(measured=1.0, steps=16, spread=0.01)] * 4,
        steps_since_policy=100,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def pooled(speeds_permille: tuple[int, ...] = ()) -> Policy:
    """Return a policy in force that fits the evidence as it stands."""
    first = decide(evidence(), HOME_POLICY, SETTINGS).policy
    assert first is not None
    return msgspec.structs.replace(first, speeds_permille=speeds_permille)


def refused(decision: Decision, *words: str) -> bool:
    return decision.policy is None and all(word in decision.reason for word in words)


def test_the_first_policy_pools_with_measured_costs() -> None:
    """Enough evidence brings a policy that pools by measured costs, and says what it may gain."""
    decision = decide(evidence(), HOME_POLICY, SETTINGS)

    assert decision.policy is not None
    assert decision.policy.pooling
    assert (decision.policy.version, decision.policy.parent) == (1, 0)
    assert decision.policy.tile_cost == TileCost.from_seconds(COEFFICIENTS.tolist())
    assert decision.policy.speeds_permille == ()
    assert decision.predicted_gain is not None
    assert f"{decision.predicted_gain:.1%}" in decision.reason
    assert decision.policy.reason == decision.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kinds": []}, ["No kernel was measured"]),
        ({"kinds": [FORWARD, replace(FORWARD, observations=39)]}, ["39 observations", "40"]),
        ({"kinds": [replace(FORWARD, error=0.26)]}, ["26.0%", "at most 25%"]),
        ({"kinds": [replace(FORWARD, error=None)]}, ["error on the forward kernel is not known"]),
        ({"home_features": home_features(steps=1)}, ["1 complete steps, 2 are needed"]),
        ({"coefficients": None}, ["No cost model"]),
        ({"coefficients": np.zeros(4)}, ["cannot be used"]),
        ({"home_features": home_features(0.0)}, ["Stay home", "save 0.0%", "more than 2%"]),
    ],
)
def test_without_evidence_or_gain_the_job_stays_home(
    changes: dict[str, object], words: list[str]
) -> None:
    """Without enough evidence or gain a job stays home, and the reason says what is lacking."""
    assert refused(decide(evidence(**changes), HOME_POLICY, SETTINGS), *words)


def test_the_hysteresis_is_a_threshold() -> None:
    """Pooling begins where the predicted gain exceeds ``min_gain``, and not below it."""
    gain = predicted_gain(home_features(), COEFFICIENTS)
    below = DecideSettings(min_gain=gain - 1e-6)
    above = DecideSettings(min_gain=gain + 1e-6)

    assert decide(evidence(), HOME_POLICY, below).policy is not None
    assert refused(decide(evidence(), HOME_POLICY, above), "Stay home")


def test_a_policy_that_fits_is_kept() -> None:
    """A policy is not replaced while its costs and speeds still hold."""
    assert refused(decide(evidence(), pooled(), SETTINGS), "Keep policy 1", "changed by 0.0%")


def test_a_common_factor_is_no_reason_for_another_policy() -> None:
    """Placement depends on the shape of costs, not on the speed of the machine."""
    faster = evidence(coefficients=COEFFICIENTS / 7)

    assert refused(decide(faster, pooled(), SETTINGS), "Keep policy 1")


def test_another_shape_of_costs_is() -> None:
    """Costs of another shape call for a successor, which says what it replaces and why."""
    changed = evidence(coefficients=COEFFICIENTS * np.array([1, 100, 100, 1]))
    decision = decide(changed, pooled(), SETTINGS)

    assert decision.policy is not None
    assert (decision.policy.version, decision.policy.parent) == (2, 1)
    assert "Replace policy 1: predicted costs of ranks changed by" in decision.reason


def test_a_slow_rank_is_and_only_its_speed_changes() -> None:
    """A rank that turned slow calls for a successor; ranks that merely scatter stay nominal."""
    speeds = [RankSpeed(measured=m, steps=16, spread=0.01) for m in (1.02, 0.7, 0.97, 1.0)]
    decision = decide(evidence(speeds=speeds), pooled(), SETTINGS)

    assert decision.policy is not None
    assert decision.policy.speeds_permille == (1000, 700, 1000, 1000)
    assert "rank 1 went from speed 1.00 to 0.70" in decision.reason


def test_missing_evidence_of_speed_keeps_what_the_policy_has() -> None:
    """After a restart nothing is known of the ranks: that is no news about them."""
    unknown = evidence(speeds=[RankSpeed()] * 4)
    policy = pooled(speeds_permille=(1000, 700, 1000, 1000))

    assert refused(decide(unknown, policy, SETTINGS), "Keep policy")


def test_a_recovered_rank_becomes_nominal_again() -> None:
    """A rank that is as fast as the others again gets its full share back."""
    policy = pooled(speeds_permille=(1000, 700, 1000, 1000))
    decision = decide(evidence(), policy, SETTINGS)

    assert decision.policy is not None
    assert decision.policy.speeds_permille == ()


def test_speeds_of_another_world_are_replaced() -> None:
    """After a job came back with fewer ranks its old speeds name the wrong ones."""
    decision = decide(evidence(), pooled(speeds_permille=(1000, 700) * 4), SETTINGS)

    assert decision.policy is not None
    assert decision.policy.speeds_permille == ()
    assert "speeds of 8 ranks for 4" in decision.reason


def test_policies_keep_their_distance() -> None:
    """However much changes, the next policy comes no sooner than ``cooldown_steps`` after one."""
    changed = evidence(coefficients=COEFFICIENTS * np.array([1, 100, 100, 1]))
    early = replace(changed, steps_since_policy=19)

    assert refused(decide(early, pooled(), SETTINGS), "Cooling down: 19", "20")
    assert decide(replace(changed, steps_since_policy=20), pooled(), SETTINGS).policy


def test_gain_is_what_perfect_balance_would_save() -> None:
    """The gain is the share of the slowest rank's time that balance saves, 0 without any work."""
    features = np.zeros((2, 2, 4))
    features[0, :, 3] = [1.0, 3.0]
    features[1, :, 3] = [2.0, 2.0]
    unit = np.array([0.0, 0.0, 0.0, 1.0])

    assert predicted_gain(features, unit) == pytest.approx((1 - 2 / 3) / 2)
    # Even data on a rank of half the speed: 2.67 s at best instead of 4 s.
    assert predicted_gain(features[1:], unit, np.array([1.0, 0.5])) == pytest.approx(1 / 3)
    assert predicted_gain(np.zeros((0, 2, 4)), unit) == 0.0
    assert predicted_gain(np.zeros((2, 2, 4)), unit) == 0.0


def test_shape_change_is_a_relative_difference() -> None:
    """Models differ by what they say of ranks relative to each other, not by a common factor."""
    features = np.zeros((1, 2, 4))
    features[0, 0, 3] = features[0, 1, 1] = 1.0
    old = np.array([0.0, 1.0, 0.0, 1.0])
    new = np.array([0.0, 1.0, 0.0, 3.0])

    assert shape_change(features, 5 * old, old) == pytest.approx(0.0)
    # Shares of 1/2 and 1/2 became 3/4 and 1/4.
    assert shape_change(features, new, old) == pytest.approx(0.5)
    assert shape_change(np.zeros((1, 2, 4)), new, old) == 0.0


def test_coefficients_survive_the_policy() -> None:
    """A policy's integers give back the fitted seconds to five digits."""
    np.testing.assert_allclose(policy_coefficients(pooled()), COEFFICIENTS, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_observations", 0), ("cooldown_steps", 0), ("max_error", 1.0), ("min_gain", 0.0)],
)
def test_settings_name_what_is_wrong(name: str, value: float) -> None:
    """A setting out of range is refused with its name and value."""
    with pytest.raises(ValueError, match=f"{name}={value}: must"):
        DecideSettings(**{name: value})  # type: ignore[arg-type]
