"""The policy that the evidence wishes for, whether or not its time has come.

The first policy switches pooling on; a successor changes one thing, the most urgent.

Shapes: S recent complete steps, W ranks, F = 6 features.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.balancer.bodies import (
    next_version,
    policy_coefficients,
    policy_speeds,
    with_costs,
    with_speeds,
)
from libra.balancer.bounds import bounded_costs, bounded_speeds, speeds_gain
from libra.balancer.decide_settings import DecideSettings
from libra.balancer.evidence import Decision, Evidence, Topic
from libra.balancer.gains import predicted_gain, shape_change
from libra.balancer.policy import Policy
from libra.balancer.speeds import SpeedSettings, speeds_to_act_on

Float64 = NDArray[np.float64]


def first(evidence: Evidence, policy: Policy, settings: DecideSettings) -> Decision:
    """Judge whether to switch pooling on, with measured costs and believed speeds."""
    assert evidence.coefficients is not None
    speeds = next_speeds(evidence, policy, settings.speeds)
    speeds = bounded_speeds(speeds, np.ones(len(speeds)), settings.max_factor)
    gain = predicted_gain(evidence.home_features, evidence.coefficients, speeds)
    steps = len(evidence.home_features)
    if gain <= settings.min_gain:
        return no(
            "home",
            f"Stay home: perfect balance would save {gain:.1%} of the slowest rank's kernel "
            f"time over {steps} steps, and it takes more than {settings.min_gain:.0%} to move.",
            gain,
        )
    reason = (
        f"Pool: perfect balance would save up to {gain:.1%} of the slowest rank's kernel time "
        f"over {steps} steps (hysteresis {settings.min_gain:.0%})."
    )
    body = with_speeds(with_costs(policy, evidence.coefficients), speeds)
    body = msgspec.structs.replace(body, pooling=True)
    return yes("pooling", policy, body, reason, gain)


def successor(evidence: Evidence, policy: Policy, settings: DecideSettings) -> Decision:
    """Judge speeds, then costs, then the exchange: the first that calls for it changes."""
    assert evidence.coefficients is not None
    current = policy_speeds(policy, len(evidence.speeds))
    speeds = next_speeds(evidence, policy, settings.speeds)
    gain = speeds_gain(speeds, current)
    others = len(policy.speeds_permille) not in (0, len(speeds))
    if others or gain > settings.min_gain:
        return _other_speeds(policy, speeds, current, gain, settings)
    if evidence.unsettled:
        # A rank that has just turned slow bends the fit before it is known to be slow.
        return no("evidence", "Something changed during the last trial: speeds come first.")
    old = policy_coefficients(policy)
    change = shape_change(evidence.home_features, evidence.coefficients, old)
    threshold = settings.change(evidence.fruitless)
    if change > threshold:
        return _other_costs(evidence, policy, change, settings)
    wish = evidence.exchange
    if wish and (wish.waves, wish.min_gain_permille) != (policy.waves, policy.min_gain_permille):
        body = msgspec.structs.replace(
            policy, waves=wish.waves, min_gain_permille=wish.min_gain_permille
        )
        return yes("exchange", policy, body, f"Replace policy {policy.version}: {wish.reason}")
    return no(
        "kept",
        f"Keep policy {policy.version}: predicted costs of ranks changed by {change:.1%}, more "
        f"than {threshold:.0%} calls for another, and other speeds would save "
        f"{gain:.1%}, more than {settings.min_gain:.0%} does.",
        gain,
    )


def _other_speeds(
    policy: Policy, speeds: Float64, current: Float64, gain: float, settings: DecideSettings
) -> Decision:
    near = bounded_speeds(speeds, current, settings.max_factor)
    rank = int(np.abs(np.log(near / current)).argmax()) if near.size else 0
    if len(policy.speeds_permille) not in (0, len(speeds)):
        cause = f"it has speeds of {len(policy.speeds_permille)} ranks for {len(speeds)}"
    else:
        cause = (
            f"rank {rank} went from speed {current[rank]:.2f} to {near[rank]:.2f}, and speeds as "
            f"measured save {gain:.1%} (hysteresis {settings.min_gain:.0%})"
        )
    body = with_speeds(policy, near)
    return yes("speeds", policy, body, f"Replace policy {policy.version}: {cause}.", gain)


def _other_costs(
    evidence: Evidence, policy: Policy, change: float, settings: DecideSettings
) -> Decision:
    assert evidence.coefficients is not None
    old = policy_coefficients(policy)
    costs, share = bounded_costs(
        evidence.home_features, evidence.coefficients, old, settings.max_factor
    )
    part = "" if share == 1.0 else f"; {share:.0%} of the way, so that none changes more than "
    part += "" if share == 1.0 else f"{settings.max_factor:g} times"
    reason = (
        f"Replace policy {policy.version}: predicted costs of ranks changed by {change:.1%} "
        f"(threshold {settings.change(evidence.fruitless):.0%}){part}."
    )
    return yes("costs", policy, with_costs(policy, costs), reason, change)


def next_speeds(evidence: Evidence, policy: Policy, settings: SpeedSettings) -> Float64:
    """Return [W] speeds to plan with: the policy's, save where evidence contradicts it."""
    current = policy_speeds(policy, len(evidence.speeds))
    told = np.array([speed.steps >= settings.min_steps for speed in evidence.speeds], dtype=bool)
    spread = np.array([speed.spread for speed in evidence.speeds], dtype=float)
    wanted = speeds_to_act_on(evidence.speeds, settings)
    apart = np.abs(wanted - current)
    news = (apart > settings.min_deviation * current) & (apart > settings.min_spreads * spread)
    return np.where(told & news, wanted, current)


def no(topic: Topic, reason: str, gain: float | None = None) -> Decision:
    return Decision(policy=None, reason=reason, topic=topic, predicted_gain=gain)


def yes(
    topic: Topic, policy: Policy, body: Policy, reason: str, gain: float | None = None
) -> Decision:
    body = next_version(policy, body, reason=reason)
    return Decision(policy=body, reason=reason, topic=topic, predicted_gain=gain)
