"""The one decision: does the evidence call for another policy, and why or why not.

Pure: evidence, the policy in force and settings in; a decision out, whose reason is a sentence
with its numbers either way. One policy is on trial at a time.
"""

import numpy as np

from libra.attention.cost import TileCost
from libra.balancer.bodies import next_version, policy_coefficients, policy_speeds
from libra.balancer.candidates import first, no, successor
from libra.balancer.decide_settings import DecideSettings
from libra.balancer.evidence import Decision, Evidence, Refusal, lack
from libra.balancer.gains import shape_change
from libra.balancer.policy import Policy

# Numbers this close are the same policy again, unless it promises this much more than it did.
_CLOSE = 0.10
_MORE_GAIN = 1.5


def decide(evidence: Evidence, policy: Policy, settings: DecideSettings) -> Decision:
    """Return what to do about ``policy``, the one in force."""
    if evidence.restored is not None:
        reason = f"Roll back policy {policy.version}: {evidence.worse}"
        back = next_version(policy, evidence.restored, reason=reason)
        return Decision(policy=back, reason=reason, topic="rollback")
    if evidence.trial:
        return Decision(policy=None, reason=evidence.trial, topic="trial")
    lacking = lack(evidence, settings)
    if lacking or evidence.coefficients is None:
        return no("evidence", lacking or "No cost model is fitted yet.")
    try:
        TileCost.from_seconds(evidence.coefficients.tolist())
    except ValueError as error:
        return no("evidence", f"The fitted model cannot be used: {error}.")
    judge = successor if policy.pooling else first
    return _admit(judge(evidence, policy, settings), evidence, policy, settings)


def _admit(
    wanted: Decision, evidence: Evidence, policy: Policy, settings: DecideSettings
) -> Decision:
    """Hold a wanted policy back while things cool down, or where it failed not long ago."""
    if wanted.policy is None:
        return wanted
    cooldown = settings.cooldown(evidence.setbacks)
    if policy.version > 0 and evidence.steps_since_policy < cooldown:
        after = f" after {evidence.setbacks} rollbacks" if evidence.setbacks else ""
        reason = (
            f"Cooling down{after}: {evidence.steps_since_policy} complete steps since the last "
            f"policy, the next may come after {cooldown}. {wanted.reason}"
        )
        return no("cooldown", reason, wanted.predicted_gain)
    for refusal in evidence.refusals:
        if _same_again(wanted, refusal, evidence):
            reason = (
                f"Not again: policy {refusal.policy.version} had nearly these settings and was "
                f"rolled back less than {settings.refusal_steps} steps ago. {wanted.reason}"
            )
            return no("refused", reason, wanted.predicted_gain)
    return wanted


def _same_again(wanted: Decision, refusal: Refusal, evidence: Evidence) -> bool:
    """Is it what was rolled back, by its numbers and by what it promises?"""
    new, old = wanted.policy, refusal.policy
    assert new is not None
    promised, before = wanted.predicted_gain, refusal.predicted_gain
    if promised is not None and before is not None and promised > _MORE_GAIN * before:
        return False
    switches = [(p.pooling, p.waves, p.min_gain_permille, p.tolerance_permille) for p in (new, old)]
    if switches[0] != switches[1]:
        return False
    speeds = [policy_speeds(p, len(evidence.speeds)) for p in (new, old)]
    if speeds[0].size and np.abs(speeds[0] / speeds[1] - 1).max() > _CLOSE:
        return False
    costs = [policy_coefficients(p) for p in (new, old)]
    return shape_change(evidence.home_features, costs[0], costs[1]) <= _CLOSE
