"""A job's recent steps as evidence of where their seconds go.

Shapes: W ranks; M micro-batches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.balancer.bodies import policy_speeds
from libra.balancer.speeds import speeds_to_act_on
from libra.balancer.state import JobSettings, JobState
from libra.balancer.step_evidence import StepEvidence, only_ranks
from libra.balancer.step_record import StepRecord, price_actual
from libra.balancer.steps import RECENT_STEPS

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Recent complete steps of the ranks whose figures are believed.

    Attributes:
        steps: oldest first, of one policy where there are enough of them.
        ranks: [W] numbers of these ranks.
        speeds: [W] to act on, 1 is nominal.
        stages: [W] pipeline stages.
        doubts: the other ranks, and why they are not believed.
    """

    steps: list[StepEvidence]
    ranks: Int64
    speeds: Float64
    stages: Int64
    doubts: dict[int, str]


def observe(state: JobState, settings: JobSettings) -> Observed:
    """Return what the job's newest steps tell; there may be none."""
    world_size = state.log.world_size
    doubts = rank_doubts(state)
    kept = np.ones(world_size, dtype=bool)
    kept[list(doubts)] = False
    if not kept.any():
        kept[:] = True
    speeds = np.ones(world_size)
    if len(state.speeds) == world_size:
        speeds = speeds_to_act_on(state.speeds, settings.decide.speeds)
    stages = np.array([_stage(state, rank) for rank in range(world_size)], dtype=np.int64)
    steps = [_evidence(state, record) for record in _newest(state, settings)]
    return Observed(
        steps=steps if kept.all() else [only_ranks(step, kept) for step in steps],
        ranks=np.flatnonzero(kept),
        speeds=speeds[kept],
        stages=stages[kept],
        doubts=doubts,
    )


def rank_doubts(state: JobState) -> dict[int, str]:
    """Return the ranks of which figures or speed are not believed, and why."""
    of_speed = {rank: speed.doubt for rank, speed in enumerate(state.speeds) if speed.doubt}
    return {
        rank: doubt
        for rank, doubt in sorted({**of_speed, **state.doubts}.items())
        if rank < state.log.world_size
    }


def _newest(state: JobState, settings: JobSettings) -> list[StepRecord]:
    """Return the recent steps; under the newest policy alone, once it has run enough of them."""
    records = state.log.current(RECENT_STEPS)
    newest = [r for r in records if r.policy_version == records[-1].policy_version]
    return newest if len(newest) >= settings.decide.min_steps else records


def _stage(state: JobState, rank: int) -> int:
    info = state.ranks.get(rank)
    return info.pp if info else 0


def _evidence(state: JobState, record: StepRecord) -> StepEvidence:
    features, tile = record.features, state.fits.tile_coefficients()
    work = home = None
    if features is not None:
        per_kind = state.fits.coefficients(features.kinds)
        if per_kind is not None and tile is not None:
            work, home = price_actual(features, per_kind), features.home @ tile
    world_size = len(record.kernel_seconds)
    pairs = np.zeros((world_size, 0)) if features is None else features.home_pairs
    totals = pairs.sum(axis=1, keepdims=True)
    return StepEvidence(
        measured=record.kernel_seconds,
        waits=record.waits if record.waits.size else np.zeros(world_size),
        step_seconds=record.step_seconds,
        mismatches=record.plan_mismatches,
        work=work,
        home=home,
        home_shares=np.divide(pairs, totals, out=np.zeros_like(pairs), where=totals > 0),
        at_home=record.sent_bytes == 0,
        planned_speeds=_planned_speeds(state, record),
    )


def _planned_speeds(state: JobState, record: StepRecord) -> Float64:
    """Return [W] speeds that the step's plans counted on; nominal under plain Ulysses."""
    world_size = len(record.kernel_seconds)
    for entry in reversed(state.policies):
        if entry.policy.version == record.policy_version and entry.policy.pooling:
            return policy_speeds(entry.policy, world_size)
    return np.ones(world_size)
