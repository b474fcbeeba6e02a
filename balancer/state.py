"""All that the balancer knows of one job, as plain data that goes into a snapshot and back."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from libra.balancer.decide_settings import DecideSettings
from libra.balancer.dedupe import AgentState
from libra.balancer.exchange_model import ExchangeFits
from libra.balancer.fits import KernelFits
from libra.balancer.history import DecisionEntry, PolicyEntry
from libra.balancer.node_clocks import NodeClocks
from libra.balancer.onset import Onset
from libra.balancer.options import option
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.runs import Runs
from libra.balancer.speeds import RankSpeed
from libra.balancer.steps import StepLog
from libra.balancer.trial import Trial

Mode = Literal["observe", "adapt", "frozen"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """How a job is judged.

    Attributes:
        decide: when a policy is published.
        half_life_steps: evidence loses half of its weight over this many steps.
        stale_after_s: without a report for this long a job is stale.
        finished_after_s: and for this long, finished.
        max_world_size: what a report says of a job's size is a claim, and costs memory.
    """

    decide: DecideSettings = field(default_factory=DecideSettings)
    half_life_steps: float = 200.0
    stale_after_s: float = 30.0
    finished_after_s: float = 900.0
    max_world_size: int = option(65_536, help="ranks that a job may have at most")

    def __post_init__(self) -> None:
        if not self.half_life_steps > 0:
            raise ValueError(f"half_life_steps={self.half_life_steps}: must be positive")
        if not self.max_world_size > 0:
            raise ValueError(f"max_world_size={self.max_world_size}: must be positive")
        if not 0 < self.stale_after_s <= self.finished_after_s:
            raise ValueError(
                f"stale_after_s={self.stale_after_s}: must be positive and at most "
                f"finished_after_s={self.finished_after_s}"
            )


class RankInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a rank runs and stands."""

    rank: int
    node: str
    dp: int
    cp: int
    pool: int
    pp: int = 0


class Counters(msgspec.Struct, kw_only=True):
    """What happened to reports; a batch counts for each of its rows."""

    reports: int = 0
    rejected: int = 0
    duplicates: int = 0
    late: int = 0


class JobState(msgspec.Struct, eq=False, kw_only=True):
    """One job.

    Attributes:
        exchange: what waves of the exchange cost.
        policy: the one in force; ``policies`` are those published, by version.
        published_at: how many steps were complete when it was published.
        trial: of the policy in force, until it is judged.
        setbacks: rollbacks since a policy was last kept; ``rollbacks`` counts all of them.
        decisions: those about something else than the one before, newest last.
        runs: the job's launches, and which of them the newest attempt is.
        clocks: of the nodes that say when they sent.
        ranks, agents: of this attempt; an agent is one process of a rank.
        speeds: one a rank of this attempt, as of the newest complete step; a tuple, since
            collections look through a list again and again.
        doubts: ranks of this attempt whose figures are not believed, and why.
        onset: since when its steps are uneven.
        heard_version: the newest policy version that a step was agreed to have run. It is above
            every own one after the store was lost.
        past_dropped, past_set_aside: the counts of agents that are no longer kept.
    """

    schema: Literal[2] = 2
    name: str
    mode: Mode
    fits: KernelFits
    log: StepLog
    exchange: ExchangeFits = msgspec.field(default_factory=ExchangeFits)
    policy: Policy = HOME_POLICY
    policies: list[PolicyEntry] = []
    published_at: int = 0
    trial: Trial | None = None
    setbacks: int = 0
    rollbacks: int = 0
    decisions: list[DecisionEntry] = []
    runs: Runs = msgspec.field(default_factory=Runs)
    clocks: NodeClocks = msgspec.field(default_factory=NodeClocks)
    ranks: dict[int, RankInfo] = {}
    agents: dict[str, AgentState] = {}
    speeds: tuple[RankSpeed, ...] = ()
    doubts: dict[int, str] = {}
    onset: Onset = msgspec.field(default_factory=Onset)
    counters: Counters = msgspec.field(default_factory=Counters)
    heard_version: int = 0
    past_dropped: int = 0
    past_set_aside: int = 0
    last_report_s: float | None = None

    @property
    def dropped(self) -> int:
        return self.past_dropped + sum(agent.dropped for agent in self.agents.values())

    @property
    def set_aside(self) -> int:
        return self.past_set_aside + sum(agent.set_aside for agent in self.agents.values())


def new_state(name: str, mode: Mode, settings: JobSettings) -> JobState:
    fits = KernelFits(
        min_observations=settings.decide.min_observations,
        half_life_steps=settings.half_life_steps,
    )
    return JobState(name=name, mode=mode, fits=fits, log=StepLog())
