"""A policy is published only on enough evidence that it helps, and the reason has its numbers."""

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from libra.attention.cost import NUM_FEATURES, TileCost
from libra.balancer.bodies import policy_coefficients, with_costs
from libra.balancer.decide import decide
from libra.balancer.decide_settings import DecideSettings
from libra.balancer.evidence import Decision, Evidence, KindEvidence, Refusal
from libra.balancer.gains import predicted_gain, shape_change
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.speeds import RankSpeed

Float64 = NDArray[np.float64]
SETTINGS = DecideSettings(max_error=0.25, min_change=0.05, cooldown_steps=20)
COEFFICIENTS = np.array([1e-5, 1e-7, 1e-7, 1e-9, 1e-6, 1e-8])
PAIRS = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
# Tokens cost more: every rank has as many of them.
HEAVIER = COEFFICIENTS * np.array([1, 10, 10, 1, 1, 1])
FORWARD = KindEvidence(name="the forward kernel", observations=400, error=0.05)


@dataclass(frozen=True)
class Wish:
    """What the exchange asks for."""

    waves: int
    min_gain_permille: int
    reason: str


def home_features(spread: float = 0.8, *, steps: int = 8, ranks: int = 4) -> Float64:
    """Return [S, W, F] of sequences with equal tokens and unequal pairs."""
    rng = np.random.default_rng(0)
    features = np.zeros((steps, ranks, NUM_FEATURES))
    features[..., 0] = 10
    features[..., 1:3] = 16384
    features[..., 4] = 260
    features[..., 5] = 14000
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
        ({"kinds": [FORWARD, replace(FORWARD, observations=19)]}, ["19 observations", "20"]),
        ({"kinds": [replace(FORWARD, error=0.26)]}, ["26.0%", "at most 25%"]),
        ({"kinds": [replace(FORWARD, error=None)]}, ["error on the forward kernel is not known"]),
        ({"home_features": home_features(steps=1)}, ["1 complete steps, 2 are needed"]),
        ({"coefficients": None}, ["No cost model"]),
        ({"coefficients": np.zeros(NUM_FEATURES)}, ["cannot be used"]),
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
    changed = evidence(coefficients=HEAVIER)
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
    changed = evidence(coefficients=HEAVIER)
    early = replace(changed, steps_since_policy=19)

    assert refused(decide(early, pooled(), SETTINGS), "Cooling down: 19", "20")
    assert decide(replace(changed, steps_since_policy=20), pooled(), SETTINGS).policy


def test_one_thing_changes_at_a_time() -> None:
    """A slow rank comes before other costs, and those before the exchange."""
    slow = [RankSpeed(measured=m, steps=16, spread=0.01) for m in (1.0, 0.7, 1.0, 1.0)]
    wish = Wish(waves=3, min_gain_permille=20, reason="a wave more hides 4 ms of a step.")
    policy = pooled()
    all_three = evidence(speeds=slow, coefficients=HEAVIER, exchange=wish)

    topics, policies = [], []
    for _ in range(3):
        decision = decide(all_three, policy, SETTINGS)
        assert decision.policy is not None
        topics.append(decision.topic)
        policies.append(policy := decision.policy)

    assert topics == ["speeds", "costs", "exchange"]
    assert [p.speeds_permille for p in policies] == [(1000, 700, 1000, 1000)] * 3
    assert policies[0].cost == pooled().cost
    assert (policies[1].waves, policies[2].waves, policies[2].min_gain_permille) == (0, 3, 20)
    assert policies[2].cost == policies[1].cost
    assert "a wave more hides 4 ms" in policies[2].reason
    assert refused(decide(all_three, policy, SETTINGS), "Keep policy 4")


def test_costs_that_improved_nothing_take_more_to_change_again() -> None:
    """After a fruitless change of costs the next must be twice as large."""
    changed = evidence(coefficients=COEFFICIENTS * np.array([1, 1.6, 1, 1, 1, 1]))
    change = shape_change(home_features(), changed.coefficients, COEFFICIENTS)  # type: ignore[arg-type]
    settings = DecideSettings(min_change=change / 1.5)

    assert decide(changed, pooled(), settings).topic == "costs"
    assert decide(replace(changed, fruitless=True), pooled(), settings).topic == "kept"


@pytest.mark.parametrize("measured", [0.1, 9.0])
def test_one_policy_changes_a_speed_by_no_more_than_its_bound(measured: float) -> None:
    """A speed at most halves or doubles, and ends within a quarter and four times."""
    speeds = [RankSpeed(measured=m, steps=16, spread=0.01) for m in (1.0, measured, 1.0, 1.0)]
    policy = pooled()
    seen: list[int] = []
    while (decision := decide(evidence(speeds=speeds), policy, SETTINGS)).policy and len(seen) < 5:
        policy = decision.policy
        seen.append(policy.speeds_permille[1])

    assert seen[:2] == ([500, 250] if measured < 1 else [2000, 4000])
    assert {250, 500} >= set(seen) or {2000, 4000} >= set(seen)


def test_one_policy_changes_costs_by_no_more_than_their_bound() -> None:
    """Whatever the new costs, no rank's predicted share more than doubles or halves at once."""
    home = home_features(2.0)
    flat = COEFFICIENTS * np.array([1, 1e6, 1, 0, 0, 0])
    policy = with_costs(pooled(), COEFFICIENTS * PAIRS)
    changed = evidence(home_features=home, coefficients=flat)

    for _ in range(6):
        decision = decide(changed, policy, SETTINGS)
        if decision.policy is None:
            break
        shares = [
            home @ policy_coefficients(p) / (home @ policy_coefficients(p)).sum(1, keepdims=True)
            for p in (policy, decision.policy)
        ]
        factors = shares[1] / shares[0]
        assert 0.499 < factors.min() < 1 < factors.max() < 2.001
        policy = decision.policy

    # The way is gone step by step, and to its end.
    assert policy.version > 3
    assert shape_change(home, flat, policy_coefficients(policy)) < 0.5


def test_rollbacks_lengthen_the_cool_down_up_to_a_bound() -> None:
    """Each rollback in a row doubles the distance between policies, to at most 16 times."""
    changed = evidence(coefficients=HEAVIER)

    for setbacks, needed in [(0, 20), (1, 40), (4, 320), (50, 320)]:
        early = replace(changed, setbacks=setbacks, steps_since_policy=needed - 1)
        assert decide(early, pooled(), SETTINGS).topic == "cooldown"
        assert decide(replace(early, steps_since_policy=needed), pooled(), SETTINGS).policy


def test_what_was_rolled_back_is_not_tried_again() -> None:
    """Nearly the same policy is refused, one with other numbers or more promise is not."""
    changed = evidence(coefficients=HEAVIER)
    decision = decide(changed, pooled(), SETTINGS)
    assert decision.policy is not None
    assert decision.predicted_gain is not None
    failed = Refusal(policy=decision.policy, predicted_gain=decision.predicted_gain)
    hopeful = Refusal(policy=decision.policy, predicted_gain=decision.predicted_gain / 2)

    again = decide(replace(changed, refusals=[failed]), pooled(), SETTINGS)
    nearly = replace(changed, refusals=[failed], coefficients=HEAVIER * [1, 1.01, 1, 1, 1, 1])
    other = replace(changed, refusals=[failed], coefficients=COEFFICIENTS * [1, 1, 99, 1, 1, 1])

    assert refused(again, "Not again: policy 2", "rolled back less than 2000 steps ago")
    assert decide(nearly, pooled(), SETTINGS).topic == "refused"
    assert decide(other, pooled(), SETTINGS).policy
    assert decide(replace(changed, refusals=[hopeful]), pooled(), SETTINGS).policy


def test_a_trial_is_waited_for_and_its_failure_undone() -> None:
    """While a policy is tried none follows; one that measured worse goes at once."""
    changed = evidence(coefficients=HEAVIER, trial="Policy 1 is on trial.", steps_since_policy=1)
    failed = replace(changed, trial="", restored=HOME_POLICY, worse="skew 1.5 instead of 1.1.")

    assert refused(decide(changed, pooled(), SETTINGS), "Policy 1 is on trial.")
    back = decide(failed, pooled(), SETTINGS)
    assert back.policy is not None
    assert (back.topic, back.policy.version, back.policy.parent) == ("rollback", 2, 1)
    assert not back.policy.pooling
    assert back.policy.reason == "Roll back policy 1: skew 1.5 instead of 1.1."


def test_gain_is_what_perfect_balance_would_save() -> None:
    """The gain is the share of the slowest rank's time that balance saves, 0 without any work."""
    features = np.zeros((2, 2, NUM_FEATURES))
    features[0, :, 3] = [1.0, 3.0]
    features[1, :, 3] = [2.0, 2.0]
    unit = PAIRS

    assert predicted_gain(features, unit) == pytest.approx((1 - 2 / 3) / 2)
    # Even data on a rank of half the speed: 2.67 s at best instead of 4 s.
    assert predicted_gain(features[1:], unit, np.array([1.0, 0.5])) == pytest.approx(1 / 3)
    assert predicted_gain(np.zeros((0, 2, NUM_FEATURES)), unit) == 0.0
    assert predicted_gain(np.zeros((2, 2, NUM_FEATURES)), unit) == 0.0


def test_shape_change_is_a_relative_difference() -> None:
    """Models differ by what they say of ranks relative to each other, not by a common factor."""
    features = np.zeros((1, 2, NUM_FEATURES))
    features[0, 0, 3] = features[0, 1, 1] = 1.0
    old = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    new = np.array([0.0, 1.0, 0.0, 3.0, 0.0, 0.0])

    assert shape_change(features, 5 * old, old) == pytest.approx(0.0)
    # Shares of 1/2 and 1/2 became 3/4 and 1/4.
    assert shape_change(features, new, old) == pytest.approx(0.5)
    assert shape_change(np.zeros((1, 2, NUM_FEATURES)), new, old) == 0.0


def test_coefficients_survive_the_policy() -> None:
    """A policy's integers give back the fitted seconds to five digits."""
    np.testing.assert_allclose(policy_coefficients(pooled()), COEFFICIENTS, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_observations", 0),
        ("cooldown_steps", 0),
        ("max_error", 1.0),
        ("min_gain", 0.0),
        ("max_factor", 1.0),
    ],
)
def test_settings_name_what_is_wrong(name: str, value: float) -> None:
    """A setting out of range is refused with its name and value."""
    with pytest.raises(ValueError, match=f"{name}={value}: must"):
        DecideSettings(**{name: value})  # type: ignore[arg-type]
