"""A diagnosis in plain words: what is the matter, its numbers, and what to do next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libra.balancer.causes import Cause
from libra.balancer.losses import Losses
from libra.balancer.speeds import RankSpeed
from libra.balancer.state import JobState

_MAX_NAMED = 3
_EVEN_SKEW = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A rank that is slow for certain."""

    rank: int
    speed: float
    evidence: RankSpeed


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What was found.

    Attributes:
        lost: seconds of a step by cause, largest first.
        slow: slowest first.
        suspect: the one rank that takes longer than predicted, if it is one.
        doubts: ranks that are not believed, and why.
    """

    cause: Cause
    losses: Losses
    lost: Mapping[Cause, float]
    slow: list[Slow]
    suspect: int | None
    doubts: Mapping[int, str]

    @property
    def costs(self) -> str:
        seconds, step_s = self.lost[self.cause], self.losses.step_seconds
        return f"costs {seconds:.3g} s of a step of {step_s:.3g} s"

    @property
    def skew(self) -> str:
        return f"skew {self.losses.skew:.2f} over {self.losses.steps} steps"


def say(found: Explanation, state: JobState) -> str:
    """Return the sentences of an explanation."""
    parts = [
        _SAYINGS[found.cause](found, state),
        _also(found, state),
        _doubted(found.doubts),
    ]
    return " ".join(filter(None, parts))


def say_too_little(state: JobState, steps: int, needed: int, doubts: Mapping[int, str]) -> str:
    """Return what is said before there are enough steps."""
    log = state.log
    text = (
        f"Too little evidence: {steps} complete steps of {needed} needed, "
        f"{len(state.ranks)} of {log.world_size} ranks have reported."
    )
    return " ".join(filter(None, [text, _doubted(doubts)]))


def _even(found: Explanation, state: JobState) -> str:
    losses, home = found.losses, found.losses.home_skew
    if home is None:
        return f"Even: {found.skew}. Nothing to do."
    evened = home > _EVEN_SKEW and losses.saved > _EVEN_SKEW * max(0.0, losses.unexplained)
    return (
        f"{'Evened out' if evened else 'Even'}: {found.skew}, plain Ulysses would have "
        f"{home:.2f}. Nothing to do."
    )


def _uneven_data(found: Explanation, state: JobState) -> str:
    losses = found.losses
    meeting = " where ranks meet in every micro-batch" if losses.by_micro_batch else ""
    return (
        f"Uneven data: {found.skew}, plain Ulysses would have {losses.home_skew:.2f}{meeting}; "
        f"it {found.costs}. {_evening(state)}"
    )


def _evening(state: JobState) -> str:
    if state.mode != "adapt":
        return f"Set mode adapt to let Libra even it; {state.mode} changes nothing."
    newest = state.log.current(1)
    if state.policy.pooling and newest and newest[-1].policy_version < state.policy.version:
        return f"Policy {state.policy.version} is to even it, and not all ranks run it yet."
    if state.policy.pooling:
        return "Policies even what pools allow: compare the recommended pool size with the job's."
    return "Libra evens it once its evidence suffices: see the decision."


def _slow_rank(found: Explanation, state: JobState) -> str:
    first, *others = found.slow
    also = f" Slow too: {_names([slow.rank for slow in others])}." if others else ""
    return (
        f"Slow rank: rank {first.rank}{_where(state, first.rank)} runs at {first.speed:.2f} of the "
        f"typical speed (median of {first.evidence.steps} steps, spread "
        f"{first.evidence.spread:.2f}) and {found.costs}.{also} Look for throttled clocks or "
        "other processes there, or replace it."
    )


def _uneven_stages(found: Explanation, state: JobState) -> str:
    losses = found.losses
    return (
        f"Uneven stages: the attention of pipeline stage {losses.slowest_stage} takes "
        f"{losses.stage_skew:.2f} of the mean stage over {losses.steps} steps and {found.costs}. "
        "Move layers to other stages: Libra moves no work between them."
    )


def _exchange_bound(found: Explanation, state: JobState) -> str:
    return (
        f"Exchange bound: waiting for tiles, and not for slower ranks, {found.costs} "
        f"({found.skew}). Use smaller pools or more waves, and check the links between nodes."
    )


def _planner_mismatch(found: Explanation, state: JobState) -> str:
    losses = found.losses
    if losses.mismatch >= 0.5 * found.lost[found.cause]:
        return (
            f"Planner mismatch: ranks disagreed on plans, so that {losses.mismatches:.3g} cells a "
            f"step, counted by each rank, ran at home; {found.skew}, it {found.costs}. Check "
            "that all ranks run one version of Libra with the same settings."
        )
    if losses.speeds > losses.unexplained:
        return (
            f"Planner mismatch: plans count on rank speeds that no rank has any more; "
            f"{found.skew}, it {found.costs}. The next policy mends it; {state.mode} is the "
            "mode."
        )
    return (
        f"Planner mismatch: {found.skew}, where {losses.predicted_skew:.2f} was predicted and no "
        f"rank is slow; kernel times scatter by {losses.spread:.0%} around the model, which "
        f"{found.costs}. Look at the model's error, and for other processes on the devices."
    )


def _too_little(found: Explanation, state: JobState) -> str:
    losses, rank = found.losses, found.suspect
    if losses.data is None:
        return (
            f"Too little evidence: {found.skew}; whether lengths or ranks cause it is open until "
            "kernel costs are measured."
        )
    if rank is not None:
        return (
            f"Too little evidence: {found.skew}; rank {rank}{_where(state, rank)} takes longer "
            f"than predicted, which {found.costs}, but not yet in enough steps to call it slow."
        )
    return (
        f"Too little evidence: {found.skew}, where {losses.predicted_skew:.2f} was predicted; "
        f"the difference {found.costs}, and more steps will tell why."
    )


def _also(found: Explanation, state: JobState) -> str:
    """Mention what costs too, and what was seen and costs little."""
    told = (found.cause, "slow rank")
    others = [f"{cause} {lost:.3g} s" for cause, lost in found.lost.items() if cause not in told]
    said = [f"Besides: {', '.join(others)}."] if others else []
    if found.slow and found.cause != "slow rank":
        first = found.slow[0]
        lost = found.lost.get("slow rank")
        costs = f"costs {lost:.3g} s of a step" if lost else "costs next to nothing"
        said.append(
            f"Rank {first.rank}{_where(state, first.rank)} runs at {first.speed:.2f} of the "
            f"typical speed, which {costs}."
        )
    if found.losses.mismatches and "planner mismatch" not in found.lost:
        said.append(
            f"Ranks disagreed on {found.losses.mismatches:.3g} plans a step, which ran at home."
        )
    return " ".join(said)


def _doubted(doubts: Mapping[int, str]) -> str:
    shown = list(doubts.items())[:_MAX_NAMED]
    said = [f"Figures of rank {rank} are not believed: {why.rstrip('.')}." for rank, why in shown]
    if len(doubts) > len(shown):
        said.append(f"Nor are those of {len(doubts) - len(shown)} other ranks.")
    return " ".join(said)


def _names(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MAX_NAMED]))
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"


def _where(state: JobState, rank: int) -> str:
    info = state.ranks.get(rank)
    return f" on {info.node}" if info else ""


_SAYINGS: dict[Cause, Callable[[Explanation, JobState], str]] = {
    "even": _even,
    "uneven data": _uneven_data,
    "slow rank": _slow_rank,
    "uneven stages": _uneven_stages,
    "exchange bound": _exchange_bound,
    "planner mismatch": _planner_mismatch,
    "too little evidence": _too_little,
}
