"""All that the balancer knows of one job, as plain data that goes into a snapshot and back."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from libra.balancer.decide import DecideSettings, Evidence, KindEvidence
from libra.balancer.dedupe import AgentState
from libra.balancer.fits import KernelFits
from libra.balancer.moments import NUM_FEATURES
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.speeds import RankSpeed, rank_speeds
from libra.balancer.steps import StepLog, price_actual

Mode = Literal["observe", "adapt", "frozen"]

# Of all kernel seconds: an evaluation's few calls, or a warm-up in another dtype.
_NEGLIGIBLE_SHARE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """How a job is judged.

    Attributes:
        decide: when a policy is published.
        half_life_steps: evidence loses half of its weight over this many steps.
        stale_after_s: without a report for this long a job is stale.
        finished_after_s: and for this long, finished.
    """

    decide: DecideSettings = field(default_factory=DecideSettings)
    half_life_steps: float = 200.0
    stale_after_s: float = 30.0
    finished_after_s: float = 900.0

    def __post_init__(self) -> None:
        if not self.half_life_steps > 0:
            raise ValueError(f"half_life_steps={self.half_life_steps}: must be positive")
        if not 0 < self.stale_after_s <= self.finished_after_s:
            raise ValueError(
                f"stale_after_s={self.stale_after_s}: must be positive and at most "
                f"finished_after_s={self.finished_after_s}"
            )


class RankInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank runs and stands."""

    rank: int
    node: str
    dp: int
    cp: int
    pool: int


class PolicyEntry(msgspec.Struct, kw_only=True):
    """A published policy and what became of it."""

    policy: Policy
    predicted_gain: float | None
    first_step: int | None = None


class Counters(msgspec.Struct, kw_only=True):
    """What happened to reports."""

    reports: int = 0
    rejected: int = 0
    duplicates: int = 0
    late: int = 0


class JobState(msgspec.Struct, eq=False, kw_only=True):
    """One job.

    Attributes:
        policy: the one in force; ``policies`` are those published, by version.
        published_at: how many steps were complete when it was published.
        ranks, agents: of this attempt; an agent is one process of a rank.
        speeds: one a rank of this attempt, as of the newest complete step.
        past_dropped: what agents that are no longer kept had lost.
    """

    schema: Literal[1] = 1
    name: str
    mode: Mode
    fits: KernelFits
    log: StepLog
    policy: Policy = HOME_POLICY
    policies: list[PolicyEntry] = []
    published_at: int = 0
    ranks: dict[int, RankInfo] = {}
    agents: dict[str, AgentState] = {}
    speeds: list[RankSpeed] = []
    counters: Counters = msgspec.field(default_factory=Counters)
    past_dropped: int = 0
    last_report_s: float | None = None

    @property
    def dropped(self) -> int:
        return self.past_dropped + sum(agent.dropped for agent in self.agents.values())


def new_state(name: str, mode: Mode, settings: JobSettings) -> JobState:
    fits = KernelFits(
        min_observations=settings.decide.min_observations,
        half_life_steps=settings.half_life_steps,
    )
    return JobState(name=name, mode=mode, fits=fits, log=StepLog())


def measure_speeds(state: JobState) -> list[RankSpeed]:
    """Return a speed for each rank, from the recent steps under the newest model."""
    predicted, measured = [], []
    for record in state.log.recent():
        assert record.features is not None
        coefficients = state.fits.coefficients(record.features.kinds)
        if coefficients is not None:
            predicted.append(price_actual(record.features, coefficients))
            measured.append(record.kernel_seconds)
    if not predicted:
        return [RankSpeed()] * state.log.world_size
    return rank_speeds(np.stack(predicted), np.stack(measured))


def gather_evidence(state: JobState) -> Evidence:
    """Return what a decision may look at: a kernel of next to no seconds holds nothing up."""
    total_s = sum(fit.seconds for fit in state.fits.fits)
    kinds = [
        KindEvidence(
            name=f"the {fit.kind.direction} kernel ({fit.kind.backend}, {fit.kind.dtype})",
            observations=fit.model.num_observations_,
            error=fit.error,
        )
        for fit in state.fits.fits
        if fit.seconds >= _NEGLIGIBLE_SHARE * total_s
    ]
    home = [r.features.home for r in state.log.recent() if r.features is not None]
    shape = (0, state.log.world_size, NUM_FEATURES)
    return Evidence(
        kinds=kinds,
        coefficients=state.fits.tile_coefficients(),
        home_features=np.stack(home) if home else np.zeros(shape),
        speeds=state.speeds,
        steps_since_policy=state.log.complete - state.published_at,
    )
