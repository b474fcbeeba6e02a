"""The one decision: does the evidence call for another policy, and why or why not.

Pure: evidence, the policy in force and settings in; a decision out, whose reason is a sentence
with its numbers either way.

Shapes: S recent complete steps, W ranks, F = 4 features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import TileCost
from libra.balancer.gains import predicted_gain, shape_change
from libra.balancer.policy import Policy
from libra.balancer.speeds import RankSpeed, SpeedSettings

Float64 = NDArray[np.float64]

_NOMINAL = 1000
_SLOWEST, _FASTEST = 100, 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideSettings:
    """When a policy is published.

    Attributes:
        min_observations: kernel calls of each kind.
        max_error: cost-weighted prequential error of each kind.
        min_steps: complete steps to judge by.
        min_gain: hysteresis; a share of the slowest rank's kernel seconds.
        min_change: relative change of predicted costs that calls for a successor.
        cooldown_steps: complete steps between two policies.
        speeds: when a rank counts as slow or fast.
    """

    min_observations: int = 40
    max_error: float = 0.35
    min_steps: int = 2
    min_gain: float = 0.02
    min_change: float = 0.03
    cooldown_steps: int = 5
    speeds: SpeedSettings = field(default_factory=SpeedSettings)

    def __post_init__(self) -> None:
        for name in ("min_observations", "min_steps", "cooldown_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("max_error", "min_gain", "min_change"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class KindEvidence:
    """What is known of one kernel kind: how often it was observed, and the model's error."""

    name: str
    observations: int
    error: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a decision may look at.

    Attributes:
        kinds: every kernel kind seen.
        coefficients: seconds per feature of a tile, forward plus backward; None before a fit.
        home_features: [S, W, F] of the recent complete steps under plain Ulysses.
        speeds: one a rank, as measured; empty before a fit.
        steps_since_policy: complete steps since the policy in force was published.
    """

    kinds: Sequence[KindEvidence]
    coefficients: Float64 | None
    home_features: Float64
    speeds: Sequence[RankSpeed]
    steps_since_policy: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The policy to publish, or None; ``predicted_gain`` is None where it cannot be told."""

    policy: Policy | None
    reason: str
    predicted_gain: float | None = None


def decide(
    evidence: Evidence,
    policy: Policy,
    settings: DecideSettings,
) -> Decision:
    """Return what to do about ``policy``, the one in force."""
    lack = _lack(evidence, settings)
    if lack or evidence.coefficients is None:
        return Decision(policy=None, reason=lack or "No cost model is fitted yet.")
    try:
        cost = TileCost.from_seconds(evidence.coefficients.tolist())
    except ValueError as error:
        return Decision(policy=None, reason=f"The fitted model cannot be used: {error}.")
    speeds = next_speeds(evidence, policy, settings.speeds)
    gain = predicted_gain(evidence.home_features, evidence.coefficients, speeds)
    judge = _judge_successor if policy.pooling else _judge_first
    wanted, reason = judge(evidence, policy, settings, speeds, gain)
    if not wanted:
        return Decision(policy=None, reason=reason, predicted_gain=gain)
    successor = Policy(
        version=policy.version + 1,
        parent=policy.version,
        pooling=True,
        cost=cost.coefficients,
        cost_scale_bits=cost.scale_bits,
        speeds_permille=_permille(speeds),
        tolerance_permille=policy.tolerance_permille,
        min_gain_permille=policy.min_gain_permille,
        reason=reason,
    )
    return Decision(policy=successor, reason=reason, predicted_gain=gain)


def next_speeds(evidence: Evidence, policy: Policy, settings: SpeedSettings) -> Float64:
    """Return [W] speeds to plan with: the policy's, save where evidence contradicts it."""
    current = policy_speeds(policy, len(evidence.speeds))
    pairs = zip(evidence.speeds, current, strict=True)
    return np.array(
        [
            np.clip(s.speed(settings), _SLOWEST / _NOMINAL, _FASTEST / _NOMINAL)
            if s.differs_from(old, settings)
            else old
            for s, old in pairs
        ]
    )


def policy_speeds(policy: Policy, world_size: int) -> Float64:
    """Return [W] speeds of a policy; nominal if it was made for another number of ranks."""
    if len(policy.speeds_permille) != world_size:
        return np.ones(world_size)
    return np.array(policy.speeds_permille, dtype=np.float64) / _NOMINAL


def policy_coefficients(policy: Policy) -> Float64:
    """Return [F] seconds per feature."""
    return np.array(policy.cost, dtype=np.float64) * 2.0**-policy.cost_scale_bits


def _lack(evidence: Evidence, settings: DecideSettings) -> str | None:
    """Say which evidence is missing."""
    if not evidence.kinds:
        return "No kernel was measured yet."
    fewest = min(evidence.kinds, key=lambda kind: kind.observations)
    if fewest.observations < settings.min_observations:
        return (
            f"Too little evidence: {fewest.observations} observations of {fewest.name}, "
            f"{settings.min_observations} are needed."
        )
    steps = len(evidence.home_features)
    if steps < settings.min_steps:
        return f"Too little evidence: {steps} complete steps, {settings.min_steps} are needed."
    for kind in evidence.kinds:
        if kind.error is None:
            return f"The model's error on {kind.name} is not known yet."
        if kind.error > settings.max_error:
            return (
                f"The model's error on {kind.name} is {kind.error:.1%}, "
                f"at most {settings.max_error:.0%} is allowed."
            )
    return None


def _judge_first(
    evidence: Evidence, policy: Policy, settings: DecideSettings, speeds: Float64, gain: float
) -> tuple[bool, str]:
    steps = len(evidence.home_features)
    if gain <= settings.min_gain:
        return False, (
            f"Stay home: perfect balance would save {gain:.1%} of the slowest rank's kernel "
            f"time over {steps} steps, and it takes more than {settings.min_gain:.0%} to move."
        )
    if policy.version > 0 and evidence.steps_since_policy < settings.cooldown_steps:
        return False, _cooling(evidence, settings)
    return True, (
        f"Pool: perfect balance would save up to {gain:.1%} of the slowest rank's kernel time "
        f"over {steps} steps (hysteresis {settings.min_gain:.0%})."
    )


def _judge_successor(
    evidence: Evidence, policy: Policy, settings: DecideSettings, speeds: Float64, gain: float
) -> tuple[bool, str]:
    assert evidence.coefficients is not None
    old = policy_coefficients(policy)
    change = shape_change(evidence.home_features, evidence.coefficients, old)
    before = policy_speeds(policy, len(speeds))
    moved = np.abs(speeds / before - 1)
    rank = int(moved.argmax())
    causes = []
    if change > settings.min_change:
        causes.append(f"predicted costs of ranks changed by {change:.1%}")
    if moved[rank] > settings.min_change:
        causes.append(f"rank {rank} went from speed {before[rank]:.2f} to {speeds[rank]:.2f}")
    if len(policy.speeds_permille) not in (0, len(speeds)):
        causes.append(f"it has speeds of {len(policy.speeds_permille)} ranks for {len(speeds)}")
    if not causes:
        return False, (
            f"Keep policy {policy.version}: predicted costs of ranks changed by {change:.1%} and "
            f"speeds by {moved[rank]:.1%}, more than {settings.min_change:.0%} calls for another."
        )
    if evidence.steps_since_policy < settings.cooldown_steps:
        return False, _cooling(evidence, settings)
    cause = " and ".join(causes)
    return True, f"Replace policy {policy.version}: {cause} (threshold {settings.min_change:.0%})."


def _cooling(evidence: Evidence, settings: DecideSettings) -> str:
    return (
        f"Cooling down: {evidence.steps_since_policy} complete steps since the last policy, "
        f"the next may come after {settings.cooldown_steps}."
    )


def _permille(speeds: Float64) -> tuple[int, ...]:
    """Return a policy's speeds; empty when all are nominal."""
    permille = np.clip(np.rint(speeds * _NOMINAL), _SLOWEST, _FASTEST).astype(int)
    return () if (permille == _NOMINAL).all() else tuple(permille.tolist())
