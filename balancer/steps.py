"""Steps put together from what single ranks report of them.

A step is complete when all ranks of the newest attempt have reported it. Ranks report apart
and in any order, so steps wait; how many, and how long, is bounded.

Shapes: W ranks.
"""

from bisect import bisect_left
from collections.abc import Collection

import msgspec

from libra.balancer.silence import Hearing
from libra.balancer.step_record import StepRecord, assemble
from libra.balancer.trust import repeated
from libra.balancer.wire import StepTotals

RING_STEPS = 2000
# The newest steps keep their features, so that decisions can price them anew.
RECENT_STEPS = 16
# And their predictions for longer: whether a claim fits the steps before it began.
PREDICTED_STEPS = 64
# Within so many, nobody measures the same seconds twice.
_REPEAT_STEPS = 128
CLOSE_AFTER_STEPS = 64
MAX_PENDING_STEPS = 512
MAX_INCOMPLETE_STEPS = 64


class IncompleteStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was given up: these ranks never reported it."""

    step: int
    missing: tuple[int, ...]


class StepLog(msgspec.Struct, eq=False, kw_only=True):
    """Pending, complete and given-up steps of a job.

    ``records`` is ordered by step. A new attempt that goes back in steps replaces what it does
    again. ``complete`` counts complete steps, ``incomplete`` those given up;
    ``wasted_seconds`` is summed over complete steps, those that are done again included.
    """

    attempt: int = 0
    world_size: int = 0
    pending: dict[int, dict[int, StepTotals]] = {}
    records: list[StepRecord] = []
    given_up: list[IncompleteStep] = []
    newest: int | None = None
    complete: int = 0
    incomplete: int = 0
    wasted_seconds: float = 0.0
    hearing: Hearing = msgspec.field(default_factory=lambda: Hearing.empty(0))

    def begin_attempt(self, attempt: int, world_size: int) -> None:
        """Forget what the old attempt left pending."""
        self.attempt, self.world_size = attempt, world_size
        self.pending = {}
        self.newest = None
        self.hearing = Hearing.empty(world_size)

    def add(self, rank: int, totals: StepTotals, doubts: Collection[int] = ()) -> StepRecord | None:
        """Take in one rank's step; return the record if this completes it.

        ``doubts`` are the ranks that were not believed before this step.
        """
        step = totals.step
        self.hearing.hear(rank, step)
        if self._is_closed(step):
            return None
        ranks = self.pending.setdefault(step, {})
        ranks.setdefault(rank, totals)
        if not self._is_complete(ranks):
            if len(self.pending) > MAX_PENDING_STEPS:
                self._evict()
            return None
        record = assemble(self.attempt, self.world_size, self.pending.pop(step))
        again = repeated(
            record.kernel_seconds, [r.kernel_seconds for r in self.current(_REPEAT_STEPS)]
        )
        record.repeated = again if again.any() else None
        record.doubt(doubts)
        self._insert(record)
        self.wasted_seconds += record.wasted_seconds
        self._close_old()
        return record

    def current(self, last: int) -> list[StepRecord]:
        """Return the newest records of this attempt, oldest first."""
        return [r for r in self.records[-last:] if r.attempt == self.attempt] if last > 0 else []

    def recent(self) -> list[StepRecord]:
        """Return those that have their features still."""
        return [r for r in self.current(RECENT_STEPS) if r.features is not None]

    def _is_closed(self, step: int) -> bool:
        if self.newest is None:
            return False
        if step <= self.newest - CLOSE_AFTER_STEPS:
            return True
        return any(r.step == step for r in self.current(CLOSE_AFTER_STEPS + 1))

    def _is_complete(self, ranks: dict[int, StepTotals]) -> bool:
        """Have all ranks reported the step that are heard of?"""
        if len(ranks) == self.world_size:
            return True
        if not self.hearing.may_miss(len(ranks)):
            return False
        silent = self.hearing.silent()
        return len(ranks) + len(silent - ranks.keys()) == self.world_size

    def _insert(self, record: StepRecord) -> None:
        kept = [r for r in self.records if r.attempt == self.attempt or r.step < record.step]
        kept.insert(bisect_left(kept, record.step, key=lambda r: r.step), record)
        self.records = kept[-RING_STEPS:]
        for old in self.records[-PREDICTED_STEPS:-RECENT_STEPS]:
            old.features = None
        for old in self.records[-2 * PREDICTED_STEPS : -PREDICTED_STEPS]:
            old.features = old.predicted_seconds = None
        self.newest = max(record.step, self.newest or 0)
        self.complete += 1

    def _close_old(self) -> None:
        if self.newest is None:
            return
        for step in sorted(s for s in self.pending if s <= self.newest - CLOSE_AFTER_STEPS):
            self._give_up(step)

    def _evict(self) -> None:
        """Give up the step that was first heard of longest ago.

        Wild numbers of one rank and steps from before an outage both age out, while a healthy
        step is complete long before its turn.
        """
        self._give_up(next(iter(self.pending)))

    def _give_up(self, step: int) -> None:
        ranks = self.pending.pop(step)
        missing = tuple(rank for rank in range(self.world_size) if rank not in ranks)
        given_up = [*self.given_up, IncompleteStep(step=step, missing=missing)]
        self.given_up = given_up[-MAX_INCOMPLETE_STEPS:]
        self.incomplete += 1
