"""How slow each recorded rank is against those that do the same work, and how sure that is.

A rank's level in a step is the mean logarithm of its computing operations' seconds: a slow rank
shifts it by the same amount in every step, uneven data moves it to and fro. Ranks of one pipeline
compute the same micro-batches, so what they share in a step is data, and is taken off where that
makes the answer surer.

Shapes: N operations, S steps, W ranks.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from libra.balancer.medians import MEDIAN_ERROR, SIGMA_PER_MAD
from libra.balancer.trace import COMPUTE, Bool, Float64, Trace

# Of a normal distribution's samples, as many as tell its spread as well by standard deviation.
_EFFICIENCY = 0.37
# How often a job whose ranks are equal may have one named.
_FALSE_ALARMS = 1e-3


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """How slow ranks are.

    Attributes:
        factor: a rank's seconds over its peers', median over steps [W]; 1.0 without peers.
        spread: robust standard deviation of that over steps, relative [W].
        error: standard error of the median, relative [W].
        named: which are slow, beyond what data and noise explain [W].
        steps: how many steps tell.
    """

    factor: Float64
    spread: Float64
    error: Float64
    named: Bool
    steps: int

    @property
    def slowness(self) -> Float64:
        """The factor of the ranks that are named, and 1.0 for the others [W]."""
        return np.where(self.named, self.factor, 1.0)


def rank_evidence(trace: Trace, work_s: Float64, min_factor: float = 1.05) -> RankEvidence:
    """Return how slow each rank is.

    Args:
        trace: the recorded operations.
        work_s: their seconds without waiting [N].
        min_factor: how slow a rank must be to be worth naming.
    """
    excess = _against_peers(_levels(trace, work_s), trace)
    total, total_error, spread = _summary(excess)
    own, own_error, _ = _summary(_without_pipeline(excess, trace))
    least = np.log(min_factor)
    sure = _errors_wanted(trace)
    by_total = total > np.maximum(least, sure * total_error)
    # What is left of a rank in a pipeline of two may be the other one's doing.
    by_own = own > np.maximum(least, sure * own_error)
    by_own &= total > np.maximum(least, own / 2)
    factor = np.where(by_own & ~by_total, own, total)
    return RankEvidence(
        factor=np.exp(factor),
        spread=spread,
        error=total_error,
        named=by_total | by_own,
        steps=len(trace.steps),
    )


def _errors_wanted(trace: Trace) -> float:
    """Return how many standard errors a rank must be off by, so that hardly any job errs."""
    peers = len(trace.ranks) / trace.mesh.pp_size
    freedom = max(1.0, _EFFICIENCY * (len(trace.steps) - 1) * (peers - 1))
    return float(stdtrit(freedom, 1 - _FALSE_ALARMS / len(trace.ranks)))


def _levels(trace: Trace, work_s: Float64) -> Float64:
    """Return each rank's mean logarithm of computing seconds in each step [S, W]."""
    ranks, own = len(trace.ranks), trace.is_any(*COMPUTE)
    flat = (trace.step * ranks + trace.worker)[own]
    logs = np.log(np.maximum(work_s[own], 1e-9))
    size = len(trace.steps) * ranks
    sums = np.bincount(flat, weights=logs, minlength=size)
    return (sums / np.bincount(flat, minlength=size)).reshape(-1, ranks)


def _against_peers(levels: Float64, trace: Trace) -> Float64:
    """Return levels less the median of the other ranks of the stage [S, W]."""
    excess = np.zeros_like(levels)
    for stage in np.unique(trace.stages):
        peers = np.flatnonzero(trace.stages == stage)
        for place, rank in enumerate(peers if len(peers) > 1 else ()):
            others = np.delete(peers, place)
            excess[:, rank] = levels[:, rank] - np.median(levels[:, others], axis=1)
    return excess


def _without_pipeline(excess: Float64, trace: Trace) -> Float64:
    """Return the excess less the median of the other ranks of the pipeline [S, W]."""
    pipelines = trace.dp_ranks * (int(trace.lanes.max()) + 1) + trace.lanes
    own = np.zeros_like(excess)
    for rank, pipeline in enumerate(pipelines):
        others = np.flatnonzero(pipelines == pipeline)
        others = others[others != rank]
        if len(others):
            own[:, rank] = excess[:, rank] - np.median(excess[:, others], axis=1)
    return own


def _summary(excess: Float64) -> tuple[Float64, Float64, Float64]:
    """Return each rank's median over steps, its standard error and the spread [W]."""
    middle = np.median(excess, axis=0)
    steps = len(excess)
    away = np.abs(excess - middle)
    # In few steps a rank's own scatter looks small by chance, and all look smaller than they are.
    away = np.maximum(np.median(away, axis=0), np.median(away))
    spread = SIGMA_PER_MAD * away * steps / (steps - 0.8)
    return middle, MEDIAN_ERROR * spread / np.sqrt(steps), spread
