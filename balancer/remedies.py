"""What a recorded job's steps would take with one thing put right, and all else as recorded.

Shapes: N operations, S steps, W ranks, G model chunks; C computing operations, M micro-batches.
"""

from dataclasses import dataclass

import numpy as np

from libra.balancer.rank_evidence import RankEvidence
from libra.balancer.trace import BACKWARD, COMPUTE, FORWARD, Float64, Int64, Trace, ordinals
from libra.balancer.whatif import Replay, ideal


@dataclass(frozen=True, kw_only=True)
class DataEvidence:
    """Whether uneven data is what makes a rank's micro-batches differ.

    Attributes:
        variation: standard deviation of a rank's micro-batches over their mean.
        correlation: of forward and backward of the same micro-batch; None where only one of the
            two was recorded, or nothing varies.
    """

    variation: float
    correlation: float | None


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """Seconds that a mean step would save by each remedy.

    Attributes:
        data: every step's micro-batches divided evenly; speeds of ranks and stages stay.
        ranks: the slow ranks at their peers' speed.
        stages: stages that take equally long on average; micro-batches stay uneven.
        exchange: exchanges that take no time once all have begun them.
        ranks_in_ideal: slow ranks at their peers' speed, if all else were ideal already. What
            they cost now can be hidden behind other causes.
    """

    data: float
    ranks: float
    stages: float
    exchange: float
    ranks_in_ideal: float


def remedies(replay: Replay, evidence: RankEvidence) -> Remedies:
    """Return what each remedy would save by itself."""
    trace, work = replay.trace, replay.graph.work_s
    own = np.flatnonzero(trace.is_any(*COMPUTE) & replay.graph.used)
    slowness = evidence.slowness[trace.worker[own]]
    typical = work[own] / slowness
    kind = trace.optype[own] * (int(trace.global_chunk.max()) + 1) + trace.global_chunk[own]
    even = _means(typical, trace.step[own] * (int(kind.max()) + 1) + kind)
    stage = _means(typical, kind)
    level = np.divide(
        _means(typical, trace.optype[own]), stage, out=np.ones_like(stage), where=stage > 0
    )
    typical_ideal = ideal(replay)
    slow_ideal = typical_ideal.copy()
    slow_ideal[own] *= slowness

    def saved(values: Float64, base: Float64 = work, rows: Int64 = own) -> float:
        changed = base.copy()
        changed[rows] = values
        return max(0.0, float((replay.seconds(base) - replay.seconds(changed)).mean()))

    return Remedies(
        data=saved(even * slowness),
        ranks=saved(typical),
        stages=saved(work[own] * level),
        exchange=saved(work - replay.graph.moving_s, rows=np.arange(len(work))),
        ranks_in_ideal=saved(typical_ideal[own], slow_ideal),
    )


def data_evidence(replay: Replay) -> DataEvidence:
    """Return how micro-batches of the same rank differ, and whether both directions agree."""
    trace = replay.trace
    forward, backward = (_micro_batches(replay, kind) for kind in (FORWARD, BACKWARD))
    some = forward if len(forward[0]) else backward
    _, first, second = np.intersect1d(
        forward[0], backward[0], assume_unique=True, return_indices=True
    )
    pairs = forward[1][first], backward[1][second]
    vary = len(first) > 1 and all(values.std() > 1e-9 for values in pairs)
    # Far from all in common: what was recorded of the two cannot be told apart.
    known = vary and 2 * len(first) > len(trace.step[trace.is_any(FORWARD)])
    correlation = float(np.corrcoef(*pairs)[0, 1]) if known else None
    return DataEvidence(variation=float(some[1].std()), correlation=correlation)


def _micro_batches(replay: Replay, kind: str) -> tuple[Int64, Float64]:
    """Return keys of one direction's micro-batches and their seconds over the rank's mean [M]."""
    trace = replay.trace
    own = np.flatnonzero(trace.is_any(kind))
    chunks = int(trace.global_chunk.max()) + 1
    chunk = trace.worker[own] * chunks + trace.global_chunk[own]
    cell = trace.step[own] * (len(trace.ranks) * chunks) + chunk
    micro = _numbers(trace, own, cell)
    seconds = replay.graph.work_s[own]
    mean = _means(seconds, chunk) if len(own) else seconds
    ratio = np.divide(seconds, mean, out=np.ones_like(seconds), where=mean > 0)
    size = max(int(trace.micro.max(initial=0)) + 1, trace.is_any(*COMPUTE).sum())
    return cell * size + micro, ratio


def _numbers(trace: Trace, own: Int64, cell: Int64) -> Int64:
    """Return the micro-batch of each operation: as recorded where that tells them apart."""
    recorded = trace.micro[own]
    keys = np.stack([cell, recorded], axis=1)
    known = (recorded >= 0).all() and len(np.unique(keys, axis=0)) == len(keys)
    return recorded if known else ordinals(cell)


def _means(values: Float64, key: Int64) -> Float64:
    """Return the mean of each value's group."""
    _, group = np.unique(key, return_inverse=True)
    return (np.bincount(group, weights=values) / np.bincount(group))[group]
