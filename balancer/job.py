"""One job's brain: reports in, events out, and a policy that follows from them.

Pure: time is passed in, nothing is read or sent. Reports may come twice, late or in any order.
What depends on their order tells what was known at a moment: a kind's prequential error, what
a step was predicted to cost, and when a policy was published.
"""

from collections.abc import Sequence
from typing import Self

import msgspec

from libra.balancer import intake
from libra.balancer.batch import Batch, BatchOutcome, batch_of_one
from libra.balancer.events import Event
from libra.balancer.job_thoughts import JobThoughts
from libra.balancer.lifecycle import earlier
from libra.balancer.merging import can_merge, merge
from libra.balancer.policy import Policy
from libra.balancer.snapshot import decode_state, decode_steps, encode_core, encode_state
from libra.balancer.state import JobSettings, Mode, new_state
from libra.balancer.step_record import StepRecord
from libra.balancer.steps import bounded
from libra.balancer.wire import Report, ReportError


class Job(JobThoughts):
    """The state of one job and everything that may happen to it."""

    def __init__(
        self, name: str, *, mode: Mode = "observe", settings: JobSettings | None = None
    ) -> None:
        self.settings = settings or JobSettings()
        self._adopt(new_state(name, mode, self.settings))

    def is_duplicate(self, report: Report) -> bool:
        """Was this very report folded in already?"""
        batch = batch_of_one(report)
        return not intake.is_late(self._state, batch) and not intake.fresh_rows(self._state, batch)

    def apply(self, report: Report, now_s: float) -> list[Event]:
        """Fold in a report; one seen before, or of a launch that was given up, is only counted.

        Raises ``ReportError``, with nothing folded in, for a report that cannot be true.
        """
        return self.take(batch_of_one(report), now_s).events

    def take(self, batch: Batch, now_s: float, *, later: bool = False) -> BatchOutcome:
        """Fold in the rows of a batch that can be true and are new; say what became of all.

        With ``later`` the steps that are whole now wait for ``think``, but for a few at a time.

        Raises ``ReportError``, with nothing folded in, where the batch or each row is refused.
        """
        state = self._state
        try:
            batch, refused = intake.checked(state, batch, self.settings.max_world_size)
        except ReportError:
            state.counters.rejected += len(batch)
            raise
        state.counters.rejected += len(refused)
        outcome = BatchOutcome(refused=refused)
        if intake.is_late(state, batch):
            state.counters.late += len(batch)
            outcome.late = len(batch)
            return outcome
        state.last_report_s = now_s
        for part in intake.rounds(batch):
            self._take_part(part, outcome, now_s, later=later)
        intake.note_clock(state, batch, now_s)
        return outcome

    def take_all(
        self, batches: Sequence[Batch], now_s: float, *, later: bool = False
    ) -> list[BatchOutcome | ReportError]:
        """Fold in batches as ``take`` would, one after the other; the events are the first's.

        Those that nothing is wrong with are folded in together, which takes little longer than one.
        """
        if len(batches) > 1 and can_merge(batches):
            merged = merge(batches)
            if intake.are_healthy(self._state, batches, merged, self.settings.max_world_size):
                return self._take_merged(batches, merged, now_s, later=later)
        return [self._told(batch, now_s, later=later) for batch in batches]

    def _told(self, batch: Batch, now_s: float, *, later: bool) -> BatchOutcome | ReportError:
        try:
            return self.take(batch, now_s, later=later)
        except ReportError as error:
            return error

    def _take_merged(
        self, batches: Sequence[Batch], merged: Batch, now_s: float, *, later: bool
    ) -> list[BatchOutcome | ReportError]:
        self._state.last_report_s = now_s
        outcome = BatchOutcome()
        self._take_fresh(merged, outcome, now_s, later=later)
        for batch in batches:
            intake.note_clock(self._state, batch, now_s)
        outcomes = [BatchOutcome(accepted=len(batch)) for batch in batches]
        outcomes[0].events = outcome.events
        return list(outcomes)

    def _take_part(self, batch: Batch, outcome: BatchOutcome, now_s: float, *, later: bool) -> None:
        """Fold in reports of different ranks as far as they are new."""
        state = self._state
        fresh = intake.fresh_rows(state, batch)
        outcome.duplicates += len(batch) - len(fresh)
        state.counters.duplicates += len(batch) - len(fresh)
        if not fresh:
            return
        batch = batch.only(fresh) if len(fresh) < len(batch) else batch
        self._take_fresh(batch, outcome, now_s, later=later)

    def _take_fresh(
        self, batch: Batch, outcome: BatchOutcome, now_s: float, *, later: bool
    ) -> None:
        """Fold in reports of different ranks that are new."""
        state = self._state
        if not state.runs.is_current(batch.run, batch.attempt):
            # What the launch before leaves unfinished is forgotten with it.
            outcome.events += self.think(now_s)
        outcome.accepted += len(batch)
        state.counters.reports += len(batch)
        known = [state.ranks.get(rank) for rank in batch.ranks]
        self._note_whole(intake.fold(state, batch, self.settings.decide))
        if len(self._speeds) != len(state.speeds):  # another attempt, with other ranks
            self._take_speeds()
        self._ranks_are_new |= [state.ranks.get(rank) for rank in batch.ranks] != known
        if not (later and self.may_wait):
            outcome.events += self.think(now_s)

    def reject(self) -> None:
        """Count a report that could not even be decoded."""
        self._state.counters.rejected += 1

    def set_mode(self, mode: Mode, now_s: float) -> list[Event]:
        """Change what the balancer may do; "adapt" publishes at once what it recommends."""
        self._state.mode = mode
        self._decide()
        return [Event(kind="mode", data={"mode": mode}), *self._publish_decision(now_s)]

    def publish(self, policy: Policy, now_s: float, *, author: str = "operator") -> list[Event]:
        """Put a policy in force by hand: it gets the next version and is tried like any other."""
        return self._publish(msgspec.structs.replace(policy, author=author), now_s)

    def rollback(
        self,
        now_s: float,
        *,
        to_version: int | None = None,
        author: str = "operator",
        reason: str = "",
    ) -> list[Event]:
        """Bring back the settings of ``to_version``, by default those before, as a new version.

        Raises ``UnknownPolicyError`` if that version is not known, or there is none before.
        """
        target, body = earlier(self._state, to_version)
        said = f"Back to version {target}" + (f": {reason}" if reason else ".")
        policy = msgspec.structs.replace(body, author=author, reason=said)
        return self._publish(policy, now_s, restores=target)

    def dump(self) -> bytes:
        """Return everything needed to go on, and the newest steps."""
        return encode_state(self._state)

    def core(self) -> bytes:
        """Return everything needed to go on, but for the complete steps."""
        return encode_core(self._state)

    @classmethod
    def load(
        cls, body: bytes, settings: JobSettings | None = None, steps: Sequence[bytes] = ()
    ) -> Self:
        """Return the job of a dump, or of a core and its steps' bodies.

        Raises ``ValueError`` for anything else.
        """
        state = decode_state(body)
        state.log.records += decode_steps(steps, state.log.attempt)
        job = cls(state.name, mode=state.mode, settings=settings)
        state.fits.configure(
            min_observations=job.settings.decide.min_observations,
            half_life_steps=job.settings.half_life_steps,
        )
        job._adopt(state)
        return job

    def backfill(self, records: Sequence[StepRecord]) -> None:
        """Put older steps before those that are known: charts reach further back."""
        known = self._state.log.records
        older = [r for r in records if not known or r.step < known[0].step]
        self._state.log.records = bounded([*older, *known])
