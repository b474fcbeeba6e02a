"""Steps put together from what single ranks report of them.

A step is complete when all ranks of the newest attempt have reported it. Ranks report apart
and in any order, so steps wait; how many, and how long, is bounded.

Shapes: W ranks.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence

import msgspec

from libra.attention.observer import KernelKind
from libra.balancer.batch_columns import StepColumns
from libra.balancer.pending import PendingStep
from libra.balancer.silence import Hearing
from libra.balancer.step_record import StepRecord, assemble
from libra.balancer.trust import repeated

RING_STEPS = 1000
# Of those that are kept for charts only: very large jobs have fewer.
RING_BYTES = 48 << 20
# The newest steps keep their features, so that decisions can price them anew.
RECENT_STEPS = 16
# And their predictions for longer: whether a claim fits the steps before it began.
PREDICTED_STEPS = 64
# Within so many, nobody measures the same seconds twice; older ones are kept for charts only.
EXACT_STEPS = 128
CLOSE_AFTER_STEPS = 64
MAX_PENDING_STEPS = 512
MAX_PENDING_BYTES = 512 << 20
MAX_INCOMPLETE_STEPS = 64


def bounded(records: list[StepRecord]) -> list[StepRecord]:
    """Return the newest records that a log keeps, the older ones with less and less of them.

    ``records`` are ordered; what is dropped of them is gone for all who hold them.
    """
    records = records[-RING_STEPS:]
    for old in records[:-RECENT_STEPS]:
        if old.features is not None:
            old.forget_features()
    for old in records[:-PREDICTED_STEPS]:
        if old.rank_seconds.size:
            old.forget_prediction()
    room = RING_BYTES
    for place in range(len(records) - EXACT_STEPS - 1, -1, -1):
        old = records[place]
        if not old.compact:
            old.make_compact()
        room -= old.num_bytes
        if room < 0:
            return records[place + 1 :]
    return records


class IncompleteStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was given up: these ranks never reported it."""

    step: int
    missing: tuple[int, ...]


class StepLog(msgspec.Struct, eq=False, kw_only=True):
    """Pending, complete and given-up steps of a job.

    ``records`` is ordered by step. A new attempt that goes back in steps replaces what it does
    again. ``complete`` counts complete steps, ``incomplete`` those given up;
    ``wasted_seconds`` and ``recovered_seconds`` are summed over complete steps, those that are done
    again included.
    ``kinds`` are those of this attempt, as pending steps number them.
    """

    attempt: int = 0
    world_size: int = 0
    kinds: list[KernelKind] = []
    pending: dict[int, PendingStep] = {}
    records: list[StepRecord] = []
    given_up: list[IncompleteStep] = []
    newest: int | None = None
    complete: int = 0
    incomplete: int = 0
    wasted_seconds: float = 0.0
    recovered_seconds: float = 0.0
    hearing: Hearing = msgspec.field(default_factory=lambda: Hearing.empty(0))

    def begin_attempt(self, attempt: int, world_size: int) -> None:
        """Forget what the old attempt left pending."""
        self.attempt, self.world_size = attempt, world_size
        self.kinds, self.pending = [], {}
        self.newest = None
        self.hearing = Hearing.empty(world_size)

    def number_kinds(self, kinds: Sequence[KernelKind]) -> list[int]:
        """Return the numbers of kinds, new ones included."""
        self.kinds += [kind for kind in dict.fromkeys(kinds) if kind not in self.kinds]
        return [self.kinds.index(kind) for kind in kinds]

    def add(self, ranks: Sequence[int], columns: StepColumns, kinds: list[int]) -> bool:
        """Take in one step of different ranks; return whether all of it is here, so that it can be
        put together.

        Args:
            kinds: number of each kind that the columns name.
        """
        step = columns.step
        self.hearing.hear(ranks, step)
        if self._is_closed(step):
            return False
        pending = self.pending.setdefault(step, PendingStep())
        pending.add(ranks, kinds, columns)
        if self._is_whole(pending.ranks):
            return True
        self._bound_pending()
        return False

    def whole(self) -> list[int]:
        """Return the steps that wait though every rank was heard."""
        everyone = self.world_size
        return [step for step, own in self.pending.items() if len(own.ranks) == everyone]

    def put_together(self, step: int, doubts: Collection[int] = ()) -> StepRecord | None:
        """Return the record of a step that is whole; None if it was given up meanwhile.

        ``doubts`` are ranks that were not believed before it.
        """
        pending = self.pending.pop(step, None)
        if pending is None:
            return None
        record = self._assemble(step, pending)
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
        if step > self.newest:
            return False
        if step <= self.newest - CLOSE_AFTER_STEPS:
            return True
        return any(r.step == step for r in self.current(CLOSE_AFTER_STEPS + 1))

    def _assemble(self, step: int, pending: PendingStep) -> StepRecord:
        record = assemble(step, self.attempt, self.world_size, pending, self.kinds)
        again = repeated(
            record.kernel_seconds, [r.kernel_seconds for r in self.current(EXACT_STEPS)]
        )
        record.repeated = again if again.any() else None
        return record

    def _is_whole(self, ranks: dict[int, None]) -> bool:
        """Have all ranks reported the step that are heard of?"""
        if len(ranks) == self.world_size:
            return True
        if not self.hearing.may_miss(len(ranks)):
            return False
        silent = self.hearing.silent(at_least=self.world_size - len(ranks))
        return len(ranks) + len(silent - ranks.keys()) == self.world_size

    def _bound_pending(self) -> None:
        if len(self.pending) > MAX_PENDING_STEPS:
            self._evict()
        while (
            len(self.pending) > 1
            and sum(pending.num_bytes for pending in self.pending.values()) > MAX_PENDING_BYTES
        ):
            self._evict()

    def _insert(self, record: StepRecord) -> None:
        kept = [r for r in self.records if r.attempt == self.attempt or r.step < record.step]
        kept.insert(bisect_left(kept, record.step, key=lambda r: r.step), record)
        self.records = bounded(kept)
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
        ranks = self.pending.pop(step).ranks
        missing = tuple(rank for rank in range(self.world_size) if rank not in ranks)
        given_up = [*self.given_up, IncompleteStep(step=step, missing=missing)]
        self.given_up = given_up[-MAX_INCOMPLETE_STEPS:]
        self.incomplete += 1
