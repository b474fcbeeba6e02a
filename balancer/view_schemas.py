"""The shapes of what the API shows, for its description; fields may be added, never taken away.

Shapes: S steps, W ranks, K kernel kinds, n points.
"""

from typing import Any, Literal

import msgspec

from libra.attention.observer import KernelKind
from libra.balancer.causes import Cause
from libra.balancer.effects import Effect
from libra.balancer.history import DecisionEntry
from libra.balancer.pool_advice import PoolAdvice
from libra.balancer.state import Mode

Column = list[float | None]


class JobSummary(msgspec.Struct):
    """The head line of a job; step figures are of the newest complete step."""

    job: str
    state: Literal["active", "stale", "finished"]
    mode: Mode
    attempt: int
    world_size: int
    ranks_reporting: int
    step: int | None
    skew: float | None
    home_skew: float | None
    predicted_skew: float | None
    step_seconds: float | None
    policy_version: int
    policy_checksum: str
    recommended: dict[str, Any] | None
    decision: str | None
    trial: dict[str, Any] | None
    rollbacks: int
    last_report_age_seconds: float | None
    reports: int
    rejected: int
    duplicates: int
    late: int
    dropped: int
    set_aside: int
    incomplete_steps: int
    wasted_seconds: float
    diagnosis: str
    cause: Cause
    cause_ranks: list[int]
    lost_seconds: dict[str, float]
    recoverable_share: float | None
    recovered_share: float | None
    recommended_pool: int | None
    recent_skew: list[float]
    recovered_seconds: float
    since_step: int | None
    since_seconds: float | None


class Jobs(msgspec.Struct):
    """All jobs."""

    jobs: list[JobSummary]


class Skew(msgspec.Struct):
    """Skew by step, each column [S]."""

    steps: list[int]
    skew: Column
    predicted_skew: Column
    home_skew: Column
    step_seconds: Column
    policy_version: list[int]
    attempt: list[int]


class RankRow(msgspec.Struct):
    """One rank: where it stands, how fast it is, and its newest step."""

    rank: int
    node: str
    dp: int
    cp: int
    pool: int
    pp: int
    speed: float
    speed_steps: int
    speed_spread: float
    doubt: str
    kernel_seconds: float | None
    predicted_seconds: float | None


class Ranks(msgspec.Struct):
    """The ranks [W], and their slowdown by step [S, W]."""

    steps: list[int]
    ranks: list[RankRow]
    slowdown: list[Column]


class RankView(RankRow):
    """One rank's course by step, each column [S]; ``pace`` is its seconds over what its work and
    the typical rank explain. Only the newest steps keep predictions.
    """

    steps: list[int]
    slowdown: Column
    measured_seconds: list[float]
    predicted_by_step: Column
    pace: Column
    missing: list[bool]


class Loads(msgspec.Struct):
    """The newest step by pool [Q]: its slowest rank's seconds under plain Ulysses and as measured,
    the mean of its work, and that of all ranks.
    """

    step: int | None
    policy_version: int | None
    pools: list[int]
    ranks: list[int]
    home_seconds: list[float]
    measured_seconds: list[float]
    slowest_rank: list[int]
    pool_bound_seconds: list[float]
    bound_seconds: float | None


class ModelKind(msgspec.Struct):
    """The cost model of one kernel kind: 95 % intervals of its coefficients, the course of its
    error, and the newest points with their predictions [n].
    """

    kind: KernelKind
    coefficients: list[float]
    source: str
    why: str
    count: float
    error: float | None
    points: list[list[float]]
    predicted: list[float]
    intervals: list[list[float]] | None
    error_steps: list[int]
    error_course: list[float]


class Model(msgspec.Struct):
    """The cost model, by kernel kind [K]."""

    features: list[str]
    kinds: list[ModelKind]


class WaveFit(msgspec.Struct):
    """What a wave of the exchange costs on one transport."""

    transport: str
    coefficients: dict[str, float]
    source: str
    count: float
    error: float | None


class Exchange(msgspec.Struct):
    """What the exchange sends and waits for, each column [S]."""

    steps: list[int]
    sent_bytes: list[int]
    wait_seconds: Column
    share: Column
    fits: list[WaveFit]


class Pools(msgspec.Struct):
    """Advice on the size of pools; empty before there is a model."""

    advice: list[PoolAdvice]


class PoolSaving(msgspec.Struct):
    """What each pool size would save of plain Ulysses' attention."""

    meeting: str
    sequences_per_pool: list[int]
    saved_share: list[float]


class PoolSavings(msgspec.Struct):
    """The same for each way in which ranks meet."""

    whatif: list[PoolSaving]


class PolicyRow(msgspec.Struct):
    """A published policy: its settings, and what became of it."""

    version: int
    parent: int
    pooling: bool
    cost: list[int]
    cost_scale_bits: int
    speeds_permille: list[int]
    tolerance_permille: int
    min_gain_permille: int
    waves: int
    author: str
    reason: str
    created_s: float
    checksum: str
    topic: str | None
    restores: int | None
    first_step: int | None
    predicted_gain: float | None
    effect: Effect | None
    coefficients_seconds: list[float]


class Policies(msgspec.Struct):
    """The newest policies and decisions, oldest first."""

    policies: list[PolicyRow]
    decisions: list[DecisionEntry]
