"""What can be the matter with a job: a closed set of causes, and what each of them costs."""

from typing import Literal, get_args

import msgspec

Cause = Literal[
    "even",
    "uneven data",
    "slow rank",
    "uneven stages",
    "exchange bound",
    "planner mismatch",
    "too little evidence",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's steps lose their time to.

    Attributes:
        cause: the one to act on first; "even" where none costs enough to matter.
        ranks: those that the cause names, slowest first; empty where it names none.
        steps: how many steps it is judged by.
        step_seconds: mean duration of one of them.
        lost_seconds: what each cause found costs, in seconds of a step, largest first.
        recoverable_share: of a step's seconds, what Libra could still save; None if unknown.
        recovered_share: of what a step would take under plain Ulysses, what Libra saves already.
        sentence: the above for people, with its numbers.
    """

    cause: Cause
    ranks: tuple[int, ...] = ()
    steps: int = 0
    step_seconds: float = 0.0
    lost_seconds: dict[Cause, float] = {}
    recoverable_share: float | None = None
    recovered_share: float | None = None
    sentence: str = ""
