"""Take a batch of reports into a job's state: check it whole first, then fold it in.

A step's prediction is made here, with the model of that moment.

Shapes: R rows of the batch.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from libra.balancer.batch import Batch, Refused
from libra.balancer.batch_check import check_clock, is_sound, refused_rows
from libra.balancer.decide_settings import DecideSettings
from libra.balancer.dedupe import AgentState
from libra.balancer.speeds import RankSpeed
from libra.balancer.state import JobState, RankInfo
from libra.balancer.step_record import StepRecord
from libra.balancer.wire import ReportError

_AGENTS_PER_RANK = 4


def check_envelope(state: JobState, batch: Batch, max_world_size: int) -> None:
    """Raise ``ReportError`` for a batch that is not this job's, or of more ranks than a job may
    have.
    """
    if batch.job != state.name:
        raise ReportError("$.job", "wrong_job", f"{batch.job} is not {state.name}")
    check_clock(batch)
    if batch.world_size > max_world_size:
        detail = f"{batch.world_size} is above max_world_size={max_world_size}"
        raise ReportError("$.world_size", "world_size", detail)


def check_fit(state: JobState, batch: Batch) -> None:
    """Raise ``ReportError`` for a batch that contradicts what is known of the job."""
    known = state.log.world_size
    same = state.runs.is_current(batch.run, batch.attempt)
    if same and batch.world_size != known:
        detail = f"{batch.world_size} is not the attempt's {known}"
        raise ReportError("$.world_size", "world_size", detail)
    if not state.fits.has_room(batch):
        raise ReportError("$.moments", "kinds", "the job has too many kernel kinds")


def checked(state: JobState, batch: Batch, max_world_size: int) -> tuple[Batch, list[Refused]]:
    """Return a batch without the rows that cannot be true, and those.

    Raises ``ReportError`` where the batch or each row is refused.
    """
    check_envelope(state, batch, max_world_size)
    refused = refused_rows(batch)
    if len(refused) == len(batch):
        raise ReportError(refused[0].field, refused[0].reason, refused[0].detail)
    if refused:
        rows = {one.row for one in refused}
        batch = batch.only([row for row in range(len(batch)) if row not in rows])
    check_fit(state, batch)
    return batch, refused


def are_healthy(
    state: JobState, batches: Sequence[Batch], merged: Batch, max_world_size: int
) -> bool:
    """Is every row of the launch that goes on, true as far as one can see, and new?

    ``merged`` holds the rows of ``batches``.
    """
    if not state.runs.is_current(merged.run, merged.attempt):
        return False
    try:
        for batch in batches:
            check_envelope(state, batch, max_world_size)
        check_fit(state, merged)
    except ReportError:
        return False
    return is_sound(merged) and len(fresh_rows(state, merged)) == len(merged)


def is_late(state: JobState, batch: Batch) -> bool:
    """Is it of a launch that was given up?"""
    return state.runs.is_late(batch.run, batch.attempt)


def fresh_rows(state: JobState, batch: Batch) -> list[int]:
    """Return the rows that were not folded in already."""
    rows = range(len(batch))
    if not state.runs.is_current(batch.run, batch.attempt):
        return list(rows)
    return [row for row in rows if not _is_known(state, batch, row)]


def rounds(batch: Batch) -> list[Batch]:
    """Return the batch as batches in which no rank comes twice, in the order of its rows."""
    if batch.are_ranks_distinct:
        return [batch]
    parts: list[list[int]] = []
    turns: dict[int, int] = {}
    for row, rank in enumerate(batch.ranks):
        turn = turns[rank] = turns.get(rank, -1) + 1
        if turn == len(parts):
            parts.append([])
        parts[turn].append(row)
    return [batch.only(rows) for rows in parts]


def fold(state: JobState, batch: Batch, settings: DecideSettings) -> list[int]:
    """Fold in checked reports of different ranks that are new; return the steps that are whole."""
    if not state.runs.is_current(batch.run, batch.attempt):
        _begin_attempt(state, batch)
    for row, rank in enumerate(batch.ranks):
        _note_agent(state, batch, row)
        state.ranks[rank] = _rank_info(batch, row)
    speeds = [state.speeds[rank].speed(settings.speeds) for rank in batch.ranks]
    state.fits.learn(batch, np.array(speeds))
    state.exchange.learn(batch)
    kinds = state.log.number_kinds(batch.kinds)
    return [
        columns.step
        for columns in batch.steps
        if state.log.add([batch.ranks[row] for row in columns.rows], columns, kinds)
    ]


def complete(state: JobState, steps: Iterable[int], settings: DecideSettings) -> list[StepRecord]:
    """Put steps together that are whole, price them, and return them."""
    completed = []
    for step in steps:
        # Priced one by one: an agent that catches up may bring more steps than keep features.
        record = state.log.put_together(step, state.doubts)
        if record is not None:
            _price(state, record)
            state.log.recovered_seconds += record.recovered_seconds
            state.onset.note(record.attempt, record.step, record.skew, record.step_seconds)
            if state.trial is not None:
                state.trial.note(record, settings.trial)
            completed.append(record)
    return completed


def note_clock(state: JobState, batch: Batch, now_s: float) -> None:
    """Note how far the sender's clock is from the balancer's."""
    if batch.sent_s is not None:
        state.clocks.note(
            batch.node, sent_s=batch.sent_s, arrived_s=now_s, max_nodes=state.log.world_size
        )


def _is_known(state: JobState, batch: Batch, row: int) -> bool:
    agent = state.agents.get(batch.agents[row])
    return agent is not None and agent.has(batch.sequences[row])


def _rank_info(batch: Batch, row: int) -> RankInfo:
    dp, cp, pp, pool = batch.coordinates[row]
    return RankInfo(rank=batch.ranks[row], node=batch.node_of(row), dp=dp, cp=cp, pool=pool, pp=pp)


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


def _begin_attempt(state: JobState, batch: Batch) -> None:
    state.past_dropped, state.past_set_aside = state.dropped, state.set_aside
    state.agents, state.ranks, state.doubts = {}, {}, {}
    state.clocks.nodes = {}
    state.speeds = (RankSpeed(),) * batch.world_size
    ordinal = state.runs.begin(batch.run, batch.attempt, state.log.attempt)
    state.log.begin_attempt(ordinal, batch.world_size)
    state.fits.begin_attempt(batch.world_size)
    state.exchange.restart_clock()


def _note_agent(state: JobState, batch: Batch, row: int) -> None:
    agent = state.agents.get(batch.agents[row])
    if agent is None:
        agent = state.agents[batch.agents[row]] = AgentState()
    agent.add(batch.sequences[row])
    agent.dropped = max(agent.dropped, batch.dropped[row])
    agent.set_aside = max(agent.set_aside, batch.set_aside[row])
    # A rank that restarts over and over within an attempt draws a new agent each time.
    if len(state.agents) > _AGENTS_PER_RANK * state.log.world_size:
        oldest = state.agents.pop(next(iter(state.agents)))
        state.past_dropped += oldest.dropped
        state.past_set_aside += oldest.set_aside


def _note_first_step(state: JobState, record: StepRecord) -> None:
    if record.agreed:
        state.heard_version = max(state.heard_version, record.policy_version)
    for entry in state.policies:
        if record.agreed and entry.policy.version == record.policy_version:
            known = entry.first_step
            entry.first_step = record.step if known is None else min(known, record.step)
