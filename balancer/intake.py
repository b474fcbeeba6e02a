"""Take one report into a job's state: check it whole first, then fold it in.

A step's prediction is made here, with the model of that moment.
"""

from libra.balancer.decide_settings import DecideSettings
from libra.balancer.dedupe import AgentState
from libra.balancer.speeds import RankSpeed
from libra.balancer.state import JobState, RankInfo
from libra.balancer.step_record import StepRecord
from libra.balancer.wire import Report, ReportError, check_report

_AGENTS_PER_RANK = 4


def check(state: JobState, report: Report) -> None:
    """Raise ``ReportError`` for a report that cannot be true of this job."""
    if report.job != state.name:
        raise ReportError("$.job", "wrong_job", f"{report.job} is not {state.name}")
    check_report(report)
    known = state.log.world_size
    if known and report.attempt == state.log.attempt and report.world_size != known:
        detail = f"{report.world_size} is not the attempt's {known}"
        raise ReportError("$.world_size", "world_size", detail)
    if not state.fits.has_room(report):
        raise ReportError("$.moments", "kinds", "the job has too many kernel kinds")


def is_late(state: JobState, report: Report) -> bool:
    """Is it of an attempt that was given up?"""
    return state.log.world_size > 0 and report.attempt < state.log.attempt


def is_duplicate(state: JobState, report: Report) -> bool:
    """Was this very report folded in already?"""
    agent = state.agents.get(report.agent)
    same_attempt = report.attempt == state.log.attempt
    return same_attempt and agent is not None and agent.has(report.sequence)


def fold(state: JobState, report: Report, settings: DecideSettings) -> list[StepRecord]:
    """Fold in a checked report that is new; return the steps that it completes."""
    if not state.log.world_size or report.attempt > state.log.attempt:
        _begin_attempt(state, report)
    _note_agent(state, report)
    at = report.coordinates
    state.ranks[report.rank] = RankInfo(
        rank=report.rank, node=report.node, dp=at.dp, cp=at.cp, pool=at.pool, pp=at.pp
    )
    state.fits.learn(report, speed=state.speeds[report.rank].speed(settings.speeds))
    state.exchange.learn(report)
    completed = []
    for totals in report.steps:
        # Priced one by one: an agent that catches up may bring more steps than keep features.
        record = state.log.add(report.rank, totals, state.doubts)
        if record:
            _price(state, record)
            if state.trial is not None:
                state.trial.note(record, settings.trial)
            completed.append(record)
    return completed


def _price(state: JobState, record: StepRecord) -> None:
    state.fits.settle()
    # A step that completes long after its time has lost its features: it stays without prices.
    if record.features is not None:
        per_kind = state.fits.coefficients(record.features.kinds)
        record.price(per_kind, state.fits.tile_coefficients())
        state.fits.watch(record)
    state.fits.advance(record.step)
    state.exchange.advance(record.step)
    _note_first_step(state, record)


def _begin_attempt(state: JobState, report: Report) -> None:
    state.past_dropped, state.past_set_aside = state.dropped, state.set_aside
    state.agents, state.ranks, state.doubts = {}, {}, {}
    state.speeds = [RankSpeed()] * report.world_size
    state.log.begin_attempt(report.attempt, report.world_size)
    state.fits.begin_attempt(report.world_size)
    state.exchange.restart_clock()


def _note_agent(state: JobState, report: Report) -> None:
    agent = state.agents.setdefault(report.agent, AgentState())
    agent.add(report.sequence)
    agent.dropped = max(agent.dropped, report.dropped)
    agent.set_aside = max(agent.set_aside, report.set_aside)
    # A rank that restarts over and over within an attempt draws a new agent each time.
    if len(state.agents) > _AGENTS_PER_RANK * state.log.world_size:
        oldest = state.agents.pop(next(iter(state.agents)))
        state.past_dropped += oldest.dropped
        state.past_set_aside += oldest.set_aside


def _note_first_step(state: JobState, record: StepRecord) -> None:
    for entry in state.policies:
        if record.agreed and entry.policy.version == record.policy_version:
            known = entry.first_step
            entry.first_step = record.step if known is None else min(known, record.step)
