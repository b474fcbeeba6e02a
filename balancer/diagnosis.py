"""One plain sentence with its numbers: what is the matter with this job, if anything."""

import numpy as np

from libra.balancer.state import JobSettings, JobState
from libra.balancer.steps import RECENT_STEPS, StepRecord

# Below this the slowest rank is as even as kernels can be timed.
_EVEN_SKEW = 1.05


def diagnose(state: JobState, settings: JobSettings) -> str:
    """Return the sentence; a slow rank comes before uneven data, for it is the one to repair."""
    records = state.log.current(RECENT_STEPS)
    if len(records) < settings.decide.min_steps:
        return _too_little(state, len(records), settings)
    slow = _slowest(state, settings)
    if slow:
        return slow
    skew = float(np.mean([r.skew for r in records]))
    known = [r.home_skew for r in records if r.home_skew is not None]
    home = float(np.mean(known)) if known else None
    return _shape(skew, home, records)


def _too_little(state: JobState, steps: int, settings: JobSettings) -> str:
    log = state.log
    return (
        f"Too little evidence: {steps} complete steps of {settings.decide.min_steps} needed, "
        f"{len(state.ranks)} of {log.world_size} ranks have reported."
    )


def _slowest(state: JobState, settings: JobSettings) -> str | None:
    slow = [(s.speed(settings.decide.speeds), rank) for rank, s in enumerate(state.speeds)]
    speed, rank = min(slow, default=(1.0, 0))
    if speed >= 1.0:
        return None
    info, evidence = state.ranks.get(rank), state.speeds[rank]
    where = f" on {info.node}" if info else ""
    return (
        f"Slow rank: rank {rank}{where} runs at {speed:.2f} of the typical speed "
        f"(median of {evidence.steps} steps, spread {evidence.spread:.2f})."
    )


def _shape(skew: float, home: float | None, records: list[StepRecord]) -> str:
    over = f"over {len(records)} steps"
    if home is None:
        return (
            f"Skew {skew:.2f} {over}: whether lengths or ranks cause it is open until kernel "
            f"costs are measured."
        )
    if home <= _EVEN_SKEW and skew <= _EVEN_SKEW:
        return f"Even: skew {skew:.2f} {over}, plain Ulysses would have {home:.2f}."
    if skew <= _EVEN_SKEW:
        return f"Evened out: skew {skew:.2f} {over}, plain Ulysses would have {home:.2f}."
    if home <= _EVEN_SKEW:
        return (
            f"Skew {skew:.2f} {over} without a cause in the data: plain Ulysses would have "
            f"{home:.2f}, and no rank is slow for certain."
        )
    return f"Uneven data: skew {skew:.2f} {over}, plain Ulysses would have {home:.2f}."
