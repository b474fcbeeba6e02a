"""What a job's steps lose their time to, and what to act on first.

Pure: a job's state in, a diagnosis with its numbers out.
"""

import numpy as np

from libra.balancer.causes import CAUSES, Cause, Diagnosis
from libra.balancer.losses import Losses, measure_losses
from libra.balancer.observed import Observed, observe, rank_doubts
from libra.balancer.sentences import Explanation, Slow, say, say_too_little
from libra.balancer.state import JobSettings, JobState
from libra.balancer.step_evidence import only_ranks

# Of mean kernel seconds: what costs less is as even as kernels can be timed.
_MATTERS = 0.05
# The slowest of many ranks is always somewhat above its prediction: only more than that is a
# fault of the plan.
_UNEXPLAINED_MATTERS = 0.1
# A fault that costs comparably, a third or more, comes first: one repair ends it for good, and
# while it lasts every plan works around it, whereas uneven data Libra evens by itself. What is
# open comes last, since nobody can act on it.
_URGENCY: dict[Cause, float] = {
    "slow rank": 3.0,
    "planner mismatch": 3.0,
    "too little evidence": 0.5,
}


def diagnose(state: JobState, settings: JobSettings) -> Diagnosis:
    """Return what the newest complete steps lose their time to."""
    doubts = rank_doubts(state)
    seen = observe(state, settings)
    if len(seen.steps) < settings.decide.min_steps:
        needed = settings.decide.min_steps
        return Diagnosis(
            cause="too little evidence",
            steps=len(seen.steps),
            sentence=say_too_little(state, len(seen.steps), needed, doubts),
        )
    losses = measure_losses(seen.steps, seen.speeds, seen.stages)
    slow = _slow_ranks(state, seen)
    suspect = _suspect(seen, losses)
    lost = _lost(losses, slow, suspect, settings)
    cause = _first(lost)
    found = Explanation(
        cause=cause, losses=losses, lost=lost, slow=slow, suspect=suspect, doubts=doubts
    )
    return Diagnosis(
        cause=cause,
        ranks=_named(found),
        steps=losses.steps,
        step_seconds=losses.step_seconds,
        lost_seconds=lost,
        recoverable_share=_recoverable(losses),
        recovered_share=_recovered(losses),
        sentence=say(found, state),
    )


def _slow_ranks(state: JobState, seen: Observed) -> list[Slow]:
    """Return the ranks that are slow for certain, slowest first."""
    order = np.argsort(seen.speeds, kind="stable")
    return [
        Slow(
            rank=int(seen.ranks[at]),
            speed=float(seen.speeds[at]),
            evidence=state.speeds[int(seen.ranks[at])],
        )
        for at in order
        if seen.speeds[at] < 1.0
    ]


def _suspect(seen: Observed, losses: Losses) -> int | None:
    """Return the one rank without which measurements are as predicted, if there is such."""
    unexplained = _UNEXPLAINED_MATTERS * losses.kernel_seconds
    if losses.ratios is None or losses.unexplained <= unexplained or len(seen.ranks) < 2:
        return None
    worst = int(losses.ratios.argmax())
    others = np.arange(len(seen.ranks)) != worst
    rest = measure_losses(
        [only_ranks(step, others) for step in seen.steps], seen.speeds[others], seen.stages[others]
    )
    return int(seen.ranks[worst]) if rest.unexplained <= unexplained else None


def _lost(
    losses: Losses, slow: list[Slow], suspect: int | None, settings: JobSettings
) -> dict[Cause, float]:
    """Return the seconds of every cause that matters, largest first."""
    found: dict[Cause, float] = {"exchange bound": losses.exchange}
    if losses.data is None:
        found["too little evidence"] = (losses.skew - 1.0) * losses.kernel_seconds
    else:
        matters = losses.unexplained > _UNEXPLAINED_MATTERS * losses.kernel_seconds
        unexplained = losses.unexplained if matters else 0.0
        early = suspect is not None or losses.steps < settings.decide.speeds.min_steps
        found["uneven data"] = losses.data
        found["uneven stages"] = losses.stages
        found["slow rank"] = losses.speeds if slow else 0.0
        # Plans that count on speeds which no rank has.
        found["planner mismatch"] = losses.mismatch + (0.0 if slow else losses.speeds)
        open_or_planner: Cause = "too little evidence" if early else "planner mismatch"
        found[open_or_planner] = found.get(open_or_planner, 0.0) + unexplained
    floor = _MATTERS * losses.kernel_seconds
    ordered = sorted(CAUSES, key=lambda cause: -found.get(cause, 0.0))
    return {cause: found[cause] for cause in ordered if found.get(cause, 0.0) > floor}


def _first(lost: dict[Cause, float]) -> Cause:
    if not lost:
        return "even"
    return max(lost, key=lambda cause: lost[cause] * _URGENCY.get(cause, 1.0))


def _named(found: Explanation) -> tuple[int, ...]:
    if found.cause == "slow rank":
        return tuple(slow.rank for slow in found.slow)
    if found.cause == "too little evidence" and found.suspect is not None:
        return (found.suspect,)
    return ()


def _recoverable(losses: Losses) -> float | None:
    """Return what ranks loaded by their speeds would save, by the model."""
    if losses.data is None:
        return None
    return _share(losses.slowest - losses.balanced, losses.step_seconds)


def _recovered(losses: Losses) -> float | None:
    """Return what is saved of plain Ulysses' step: that one is predicted, this one measured.

    What the model missed and what the exchange adds are taken off.
    """
    if losses.data is None:
        return None
    saved = losses.saved - max(0.0, losses.unexplained) - losses.exchange
    return _share(saved, losses.step_seconds + max(0.0, saved))


def _share(seconds: float, of: float) -> float:
    return min(1.0, max(0.0, seconds / of)) if of > 0 else 0.0
