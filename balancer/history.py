"""A job's policies with what became of them, and the decisions that led to them."""

from collections.abc import Iterable, Sequence

import msgspec

from libra.balancer.effects import Effect
from libra.balancer.evidence import Decision, Refusal, Topic
from libra.balancer.policy import HOME_POLICY, Policy

MAX_POLICIES = 256
MAX_DECISIONS = 256


class PolicyEntry(msgspec.Struct, kw_only=True):
    """A published policy and what became of it.

    Attributes:
        topic: what it changed; None where a person published it.
        restores: the version whose settings it brings back; None if they are its own.
        first_step: the first that all ranks ran under it.
        effect: None while it is on trial, and for a policy that was not tried.
    """

    policy: Policy
    predicted_gain: float | None
    topic: Topic | None = None
    restores: int | None = None
    first_step: int | None = None
    effect: Effect | None = None


class DecisionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about something else than the one before.

    Attributes:
        step: the newest complete one; None before any.
        publish: does it call for another policy?
    """

    step: int | None
    topic: Topic
    publish: bool
    reason: str


class UnknownPolicyError(ValueError):
    """The version to go back to is not known."""


def find(entries: Sequence[PolicyEntry], version: int) -> PolicyEntry | None:
    """Return a version's entry; the newest are looked at first."""
    return next((e for e in reversed(entries) if e.policy.version == version), None)


def body_of(entries: Sequence[PolicyEntry], version: int) -> Policy:
    """Return a version's settings; raise ``UnknownPolicyError`` for one that is not known."""
    if version == HOME_POLICY.version:
        return HOME_POLICY
    entry = find(entries, version)
    if entry is None:
        oldest = entries[0].policy.version if entries else None
        known = f"0 or {oldest} to {entries[-1].policy.version}" if entries else "0"
        raise UnknownPolicyError(f"to_version={version}: must be {known}")
    return entry.policy


def version_before(entries: Sequence[PolicyEntry], version: int) -> int:
    """Return the version that this one's settings replaced."""
    entry = find(entries, version)
    if entry is None:
        return HOME_POLICY.version
    if entry.restores is not None:
        return version_before(entries, entry.restores) if entry.restores < version else 0
    return entry.policy.parent


def fruitless(entries: Sequence[PolicyEntry], min_effect: float) -> bool:
    """Did the last policy that changed costs improve neither skew nor step time?"""
    costs = (e.effect for e in reversed(entries) if e.topic == "costs" and e.effect)
    effect = next(costs, None)
    if effect is None or effect.skew_before is None or effect.skew_after is None:
        return effect is not None
    better_skew = effect.skew_after * (1 + min_effect) <= effect.skew_before
    better_step = effect.step_change is not None and effect.step_change * (1 + min_effect) <= 1
    return not (better_skew or better_step)


def refusals(entries: Iterable[PolicyEntry], complete: int, within: int) -> list[Refusal]:
    """Return what was rolled back within these complete steps."""
    return [
        Refusal(policy=entry.policy, predicted_gain=entry.predicted_gain)
        for entry in entries
        if entry.effect
        and entry.effect.verdict == "rolled back"
        and complete - entry.effect.ended_at < within
    ]


def with_decision(
    log: Sequence[DecisionEntry], decision: Decision, step: int | None
) -> list[DecisionEntry]:
    """Return the log with the decision, unless it is about the same as the newest."""
    if log and log[-1].topic == decision.topic:
        return list(log)
    entry = DecisionEntry(
        step=step,
        topic=decision.topic,
        publish=decision.policy is not None,
        reason=decision.reason,
    )
    return [*log, entry][-MAX_DECISIONS:]
