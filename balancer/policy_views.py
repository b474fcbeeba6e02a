"""What the API shows of a job's policies: dictionaries ready for JSON, with finite numbers only."""

from msgspec import to_builtins

from libra.balancer.bodies import policy_coefficients
from libra.balancer.events import View
from libra.balancer.evidence import Decision
from libra.balancer.history import PolicyEntry, find
from libra.balancer.state import JobState


def policies_view(state: JobState) -> View:
    """Return the policies with their effects, and the decisions, each in order."""
    return {
        "policies": [policy_row(entry) for entry in state.policies],
        "decisions": [to_builtins(entry) for entry in state.decisions],
    }


def policy_row(entry: PolicyEntry) -> View:
    policy = entry.policy
    return {
        **to_builtins(policy),
        "checksum": policy.checksum,
        "topic": entry.topic,
        "restores": entry.restores,
        "first_step": entry.first_step,
        "predicted_gain": entry.predicted_gain,
        "effect": to_builtins(entry.effect),
        "coefficients_seconds": policy_coefficients(policy).tolist(),
    }


def trial_view(state: JobState) -> View | None:
    """Return the trial of the policy in force, or what it came to; None if it is not tried."""
    trial = state.trial
    if trial is not None:
        return {
            "version": trial.version,
            "parent": trial.parent,
            "verdict": None,
            "reason": f"Policy {trial.version} is on trial against policy {trial.parent}.",
            "steps_before": len(trial.before),
            "steps_after": len(trial.after),
        }
    entry = find(state.policies, state.policy.version)
    if entry is None or entry.effect is None:
        return None
    effect = to_builtins(entry.effect)
    return {"version": entry.policy.version, "parent": entry.policy.parent, **effect}


def recommendation_view(decision: Decision | None) -> View | None:
    """Return the policy that a decision calls for; None if it calls for none."""
    if decision is None or decision.policy is None:
        return None
    return {"reason": decision.reason, "predicted_gain": decision.predicted_gain}
