"""What the API shows of pool sizes: dictionaries ready for JSON, with finite numbers only."""

from typing import get_args

from msgspec import to_builtins

from libra.balancer.events import View
from libra.balancer.pool_advice import PoolAdvice
from libra.balancer.pool_size import advise_pool_size
from libra.balancer.sequence_costs import sent_bytes_per_second, sequence_seconds
from libra.balancer.state import JobState
from libra.balancer.step_placement import Meeting

_EVERY_STEPS = 8


class RecommendedPool:
    """The size for ranks that meet in every micro-batch, tried anew now and then.

    Summaries are read all the time, and placing steps takes longer than all else in them.
    """

    def __init__(self) -> None:
        self._tried: tuple[int, int, int] | None = None
        self._size: int | None = None

    def of(self, state: JobState) -> int | None:
        """Return the size of one and the same job; None before there is a model."""
        due = (state.log.attempt, state.log.complete // _EVERY_STEPS, state.policy.version)
        if due != self._tried:
            self._tried = due
            advice = _advice(state, ("micro_batch",))
            self._size = advice[0].recommended if advice else None
        return self._size


def pools_view(state: JobState) -> View:
    """Return the advice for either way of meeting; ``advice`` is empty before there is a model."""
    return {"advice": [to_builtins(each) for each in _advice(state, get_args(Meeting))]}


def whatif_view(state: JobState) -> View:
    """Return what share of plain Ulysses' attention each pool size would save."""
    return {
        "whatif": [
            {
                "meeting": each.meeting,
                "sequences_per_pool": [size.sequences_per_pool for size in each.sizes],
                "saved_share": [size.saved_share for size in each.sizes],
            }
            for each in _advice(state, get_args(Meeting))
        ]
    }


def _advice(state: JobState, meetings: tuple[Meeting, ...]) -> list[PoolAdvice]:
    seconds = sequence_seconds(state)
    moved = sent_bytes_per_second(state)
    advice = [
        advise_pool_size(
            seconds, meeting=meeting, exchange=state.exchange.seconds, bytes_per_second=moved
        )
        for meeting in meetings
    ]
    return [each for each in advice if each is not None]
