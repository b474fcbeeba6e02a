"""What a decision may look at, and what it comes to.

Shapes: S recent complete steps, W ranks, F = 6 features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from libra.balancer.decide_settings import DecideSettings
from libra.balancer.policy import Policy
from libra.balancer.speeds import RankSpeed

Float64 = NDArray[np.float64]

# What a decision is about; the first five bring a policy.
Topic = Literal[
    "pooling",
    "speeds",
    "costs",
    "exchange",
    "rollback",
    "evidence",
    "home",
    "kept",
    "cooldown",
    "trial",
    "refused",
]


class ExchangeWish(Protocol):
    """What the exchange's cost model asks of a policy."""

    @property
    def waves(self) -> int: ...
    @property
    def min_gain_permille(self) -> int: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class KindEvidence:
    """What is known of one kernel kind: how often it was observed, and the model's error."""

    name: str
    observations: int
    error: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A policy that was rolled back not long ago, and what had been expected of it."""

    policy: Policy
    predicted_gain: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a decision may look at.

    Attributes:
        kinds: every kernel kind seen.
        coefficients: seconds per feature of a tile, forward plus backward; None before a fit.
        home_features: [S, W, F] of the recent complete steps under plain Ulysses.
        speeds: one a rank, as measured; empty before a fit.
        steps_since_policy: complete steps since the policy in force was published.
        setbacks: rollbacks since a policy was last kept.
        trial: a sentence on the policy that is on trial; empty if none is.
        restored: the policy in force measured worse: what to go back to.
        worse: and the measurement, as a sentence.
        refusals: policies that were rolled back not long ago.
        unsettled: the last trial was disturbed so lately that speeds may not be known yet.
        fruitless: the last policy that changed costs measurably improved nothing.
        exchange: what waves and least gain should be; None while that is not known.
    """

    kinds: Sequence[KindEvidence]
    coefficients: Float64 | None
    home_features: Float64
    speeds: Sequence[RankSpeed]
    steps_since_policy: int
    setbacks: int = 0
    trial: str = ""
    restored: Policy | None = None
    worse: str = ""
    refusals: Sequence[Refusal] = ()
    unsettled: bool = False
    fruitless: bool = False
    exchange: ExchangeWish | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The policy to publish, or None; ``predicted_gain`` is None where it cannot be told."""

    policy: Policy | None
    reason: str
    topic: Topic
    predicted_gain: float | None = None


def lack(evidence: Evidence, settings: DecideSettings) -> str | None:
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
