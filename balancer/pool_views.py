"""What the API shows of pool sizes: dictionaries ready for JSON, with finite numbers only."""

from collections.abc import Sequence
from typing import get_args

from msgspec import to_builtins

from libra.balancer.events import View
from libra.balancer.pool_advice import PoolAdvice
from libra.balancer.pool_size import advise_pool_size
from libra.balancer.sequence_costs import (
    other_seconds,
    sent_bytes_per_second,
    sequence_seconds,
)
from libra.balancer.state import JobState
from libra.balancer.step_placement import Meeting

_EVERY_STEPS = 8


class Advised:
    """The advice on one job's pools, tried anew now and then.

    Summaries are read all the time, and placing steps takes longer than all else in them.

    Attributes:
        advice: for either way of meeting; empty before there is a model.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._of: tuple[int, int, int] | None = None
        self.advice: list[PoolAdvice] = []

    @property
    def current(self) -> bool:
        """Is it too early to try anew?"""
        return self._of == self.moment()

    @property
    def size(self) -> int | None:
        """The size for ranks that meet in every micro-batch, as far as it is known."""
        return self.advice[0].recommended if self.advice else None

    def now(self) -> list[PoolAdvice]:
        """Return the advice, tried anew if it is time."""
        if not self.current:
            self.keep(pool_advice(self._state), self.moment())
        return self.advice

    def keep(self, advice: list[PoolAdvice], moment: tuple[int, int, int]) -> None:
        """Keep advice that was made from the state of a moment."""
        self.advice = advice
        # Without any there will soon be some.
        self._of = moment if advice else None

    def moment(self) -> tuple[int, int, int]:
        """Return what differs when it is time to try anew."""
        log = self._state.log
        return (log.attempt, log.complete // _EVERY_STEPS, self._state.policy.version)


def pools_view(advice: Sequence[PoolAdvice]) -> View:
    """Return the advice for either way of meeting; ``advice`` is empty before there is a model."""
    return {"advice": [to_builtins(each) for each in advice]}


def whatif_view(advice: Sequence[PoolAdvice]) -> View:
    """Return what share of plain Ulysses' attention each pool size would save."""
    return {
        "whatif": [
            {
                "meeting": each.meeting,
                "sequences_per_pool": [size.sequences_per_pool for size in each.sizes],
                "saved_share": [size.saved_share for size in each.sizes],
            }
            for each in advice
        ]
    }


def pool_advice(state: JobState) -> list[PoolAdvice]:
    """Return the advice for each way of meeting, that in every micro-batch first."""
    seconds = sequence_seconds(state)
    moved, rest = sent_bytes_per_second(state), other_seconds(state)
    advice = [
        advise_pool_size(
            seconds,
            meeting=meeting,
            exchange=state.exchange.seconds,
            bytes_per_second=moved,
            other_seconds=rest,
        )
        for meeting in get_args(Meeting)
    ]
    return [each for each in advice if each is not None]
