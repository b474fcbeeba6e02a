"""What the metrics show of one job, taken from its state in well under a millisecond.

Shapes: W ranks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.balancer import views
from libra.balancer.causes import Diagnosis
from libra.balancer.events import View
from libra.balancer.history import find
from libra.balancer.live_job import LiveJob
from libra.balancer.policy import HOME_POLICY
from libra.balancer.speeds import speeds_to_act_on
from libra.balancer.state import JobState
from libra.balancer.step_record import Float64, StepRecord
from libra.balancer.tally import Tally

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFigures:
    """One job at one moment; nothing in it changes when the job goes on.

    Attributes:
        view: figures by name, as in the job's summary.
        found: the newest diagnosis; None before any.
        newest: the newest complete step.
        model: the fits, without points.
        lagging_ranks: that have not reported a step under the policy or a newer one.
        clock_offsets_s: of the nodes, the least and the largest; None where nodes do not tell.
        pools, speeds: [W] of the attempt; None where the level shows none.
    """

    name: str
    view: View
    found: Diagnosis | None
    newest: StepRecord | None
    model: View
    tally: Tally
    lagging_ranks: int
    clock_offsets_s: tuple[float, float] | None = None
    pools: Int64 | None = None
    speeds: Float64 | None = None


def job_figures(live: LiveJob, now_s: float, level: str) -> JobFigures:
    """Return what is to be shown; thousands of ranks cost time only at their own level."""
    job, state = live.job, live.job.state
    finer = level != "job"
    return JobFigures(
        name=job.name,
        view=views.figures_view(state, job.settings, now_s),
        found=job.diagnosed.newest,
        newest=next(reversed(state.log.current(1)), None),
        model=views.model_view(state, points=False),
        tally=live.tally,
        lagging_ranks=lagging_ranks(state),
        clock_offsets_s=job.clock_offsets_s,
        pools=_pools(state) if finer else None,
        speeds=speeds_to_act_on(state.speeds, job.settings.decide.speeds)
        if level == "rank"
        else None,
    )


def lagging_ranks(state: JobState) -> int:
    """Return how many ranks have not reported a step under the policy in force.

    Ranks agree on a policy before a step, so it is all of them until a step completes under it.
    """
    if state.policy.version == HOME_POLICY.version:
        return 0
    entry = find(state.policies, state.policy.version)
    if entry is None or entry.first_step is None:
        return state.log.world_size
    return int((state.log.hearing.newest < entry.first_step).sum())


def spread(seconds: Float64) -> dict[str, float]:
    """Return the least, mean, middle, 99th percentile and largest of [W] values."""
    if not seconds.size:
        return {}
    last = len(seconds) - 1
    middle, high = len(seconds) // 2, min(last, len(seconds) * 99 // 100)
    ordered = np.partition(seconds, sorted({0, middle, high, last}))
    return {
        "min": float(ordered[0]),
        "mean": float(seconds.mean()),
        "p50": float(ordered[middle]),
        "p99": float(ordered[high]),
        "max": float(ordered[last]),
    }


def largest(values: Float64, count: int) -> list[float]:
    """Return the largest few of [W] values, in descending order."""
    few = values if len(values) <= count else np.partition(values, -count)[-count:]
    return sorted(few.tolist(), reverse=True)


def pool_loads(seconds: Float64, pools: Int64) -> list[float]:
    """Return each pool's mean over the mean of all, from values [W] and pools [W]."""
    number = np.maximum(np.bincount(pools), 1)
    mean = seconds.mean()
    sums = np.bincount(pools, weights=seconds)
    return list((sums / number / mean).tolist()) if mean > 0 else [1.0] * len(number)


def _pools(state: JobState) -> Int64:
    ranks = state.ranks
    pools = (ranks[rank].pool if rank in ranks else 0 for rank in range(state.log.world_size))
    return np.fromiter(pools, dtype=np.int64, count=state.log.world_size)
