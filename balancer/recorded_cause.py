"""The cause that a recorded job's steps lose most to, in one sentence with its numbers."""

from dataclasses import dataclass

from libra.balancer.causes import Cause, Diagnosis
from libra.balancer.recorded import Findings

_RANKS_SAID = 4


@dataclass(frozen=True, kw_only=True)
class RecordedSettings:
    """When a recorded job counts as what; shares are of a mean step.

    Attributes:
        min_steps: whole steps that a cause needs.
        even_slowdown: a mean step up to this many times the ideal one is even.
        min_rank_share: what slow ranks must cost to come before all other causes.
        min_ideal_share: or what they would cost, of an ideal step, were all else put right.
        min_exchange_share: what exchanges must cost to be a cause; some are always there.
        min_cause_share: what any other cause must cost to be the one to act on.
        min_share: what it must cost to be listed.
        min_correlation: of forward and backward where uneven data explains micro-batches.
    """

    min_steps: int = 5
    even_slowdown: float = 1.05
    min_rank_share: float = 0.03
    min_ideal_share: float = 0.1
    min_exchange_share: float = 0.15
    min_cause_share: float = 0.02
    min_share: float = 0.01
    min_correlation: float = 0.9

    def __post_init__(self) -> None:
        if self.min_steps < 1:
            raise ValueError(f"min_steps={self.min_steps}: must be at least 1")
        if self.even_slowdown < 1:
            raise ValueError(f"even_slowdown={self.even_slowdown}: must be at least 1")
        shares = ("rank_share", "ideal_share", "exchange_share", "cause_share", "share")
        for name in (*(f"min_{share}" for share in shares), "min_correlation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be from 0 to 1")


def recorded_diagnosis(job: Findings, settings: RecordedSettings | None = None) -> Diagnosis:
    """Return the cause to act on first, and what each cause costs."""
    settings = settings or RecordedSettings()
    lost = _lost(job, settings)
    cause = _cause(job, lost, settings)
    listed: dict[Cause, float] = {}
    for name, seconds in lost.items():
        if seconds > settings.min_share * job.step_s or (name == cause and seconds > 0):
            listed[name] = seconds
    ranks = _slowest_first(job) if cause == "slow rank" else []
    return Diagnosis(
        cause=cause,
        ranks=tuple(int(job.trace.ranks[worker]) for worker in ranks),
        steps=len(job.trace.steps),
        step_seconds=job.step_s,
        lost_seconds=listed,
        recoverable_share=job.remedies.data / job.step_s if job.step_s else 0.0,
        sentence=_sentence(cause, job, lost.get(cause, 0.0), settings),
    )


def _lost(job: Findings, settings: RecordedSettings) -> dict[Cause, float]:
    """Return what each cause costs, largest first."""
    saved = job.remedies
    lost: dict[Cause, float] = {
        "slow rank": saved.ranks,
        "uneven stages": saved.stages,
        "exchange bound": saved.exchange,
    }
    correlation = job.data.correlation
    # Data makes micro-batches differ alike in both directions; anything else does not.
    if correlation is None or correlation >= settings.min_correlation:
        lost["uneven data"] = saved.data
    ordered: list[Cause] = sorted(lost, key=lambda name: -lost[name])
    return {name: lost[name] for name in ordered}


def _cause(job: Findings, lost: dict[Cause, float], settings: RecordedSettings) -> Cause:
    """Return the cause to act on first; a slow rank is the one to repair."""
    if len(job.trace.steps) < settings.min_steps:
        return "too little evidence"
    largest: Cause | None = None
    for name, seconds in lost.items():
        exchange = name == "exchange bound"
        least = settings.min_exchange_share if exchange else settings.min_cause_share
        if largest is None and seconds > least * job.step_s:
            largest = name
    if job.what_if.slowdown < settings.even_slowdown:
        return "exchange bound" if largest == "exchange bound" else "even"
    ideal_s = float(job.what_if.ideal_s.mean())
    if (
        lost["slow rank"] > settings.min_rank_share * job.step_s
        or job.remedies.ranks_in_ideal > settings.min_ideal_share * ideal_s
    ):
        return "slow rank"
    return "too little evidence" if largest is None else largest


def _slowest_first(job: Findings) -> list[int]:
    named: list[int] = job.evidence.named.nonzero()[0].tolist()
    return sorted(named, key=lambda worker: -job.evidence.factor[worker])


def _sentence(cause: Cause, job: Findings, lost_s: float, settings: RecordedSettings) -> str:
    steps = len(job.trace.steps)
    slow = f"a step takes {job.what_if.slowdown:.2f} of its ideal time over {steps} steps"
    cost = f"it costs {lost_s:.2f} of {job.step_s:.2f} s per step"
    correlation = job.data.correlation
    alike = "" if correlation is None else f", forward and backward alike {correlation:.2f}"
    if cause == "too little evidence":
        if steps < settings.min_steps:
            return f"Too little evidence: {steps} whole steps of {settings.min_steps} needed."
        return f"Too little evidence: {slow}, and no cause explains it{alike}."
    said = {
        "even": f"Even: {slow}.",
        "uneven data": (
            f"Uneven data: {slow}; micro-batches of a rank vary by {job.data.variation:.2f}"
            f"{alike}, no rank is slow for certain; {cost}."
        ),
        "uneven stages": f"Uneven stages: {slow}; {_stages(job)}; {cost}.",
        "exchange bound": f"Exchange bound: {slow}; exchanges hold up computing; {cost}.",
        "slow rank": f"Slow rank: {_ranks(job)}; {slow}; {cost}.",
    }
    return said[cause]


def _stages(job: Findings) -> str:
    worst = max(job.what_if.stages, key=lambda stage: job.what_if.stages[stage].kept)
    return f"stage {worst} alone makes it {job.what_if.stages[worst].kept:.2f}"


def _ranks(job: Findings) -> str:
    """Return the ranks that are slow, and how sure that is."""
    evidence, named = job.evidence, _slowest_first(job)
    said = ", ".join(
        f"rank {job.trace.ranks[worker]} takes {evidence.factor[worker]:.2f} of its peers' time "
        f"(± {evidence.error[worker]:.2f})"
        for worker in named[:_RANKS_SAID]
    )
    more = f" and {len(named) - _RANKS_SAID} more" if len(named) > _RANKS_SAID else ""
    return said + more
