"""One job's brain: reports in, events out, and a policy that follows from them.

Pure: time is passed in, nothing is read or sent. Reports may come twice, late or in any order.
What depends on their order tells what was known at a moment: a kind's prequential error, what
a step was predicted to cost, and when a policy was published.
"""

from collections import deque
from collections.abc import Sequence
from typing import Self

import msgspec

from libra.balancer import intake, views
from libra.balancer.batch import Batch, BatchOutcome, batch_of_one
from libra.balancer.belief import believe
from libra.balancer.diagnosed import Diagnosed
from libra.balancer.events import Event
from libra.balancer.evidence import Topic
from libra.balancer.history import find
from libra.balancer.job_views import JobViews
from libra.balancer.lifecycle import (
    begin_trial,
    count_rollback,
    earlier,
    follow_trial,
    log_decision,
    put_in_force,
)
from libra.balancer.merging import can_merge, merge
from libra.balancer.policy import Policy
from libra.balancer.policy_views import policy_row
from libra.balancer.pool_views import Advised
from libra.balancer.snapshot import decode_state, decode_steps, encode_core, encode_state
from libra.balancer.speeds import look_different, speeds_to_act_on
from libra.balancer.state import JobSettings, JobState, Mode, new_state
from libra.balancer.state_evidence import newest_decision
from libra.balancer.step_record import StepRecord
from libra.balancer.steps import RING_STEPS, bounded
from libra.balancer.wire import Report, ReportError


class Job(JobViews):
    """The state of one job and everything that may happen to it."""

    def __init__(
        self, name: str, *, mode: Mode = "observe", settings: JobSettings | None = None
    ) -> None:
        self.settings = settings or JobSettings()
        self._new_steps: deque[StepRecord] = deque(maxlen=RING_STEPS)
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

    def take(self, batch: Batch, now_s: float) -> BatchOutcome:
        """Fold in the rows of a batch that can be true and are new; say what became of all.

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
            self._take_part(part, outcome, now_s)
        intake.note_clock(state, batch, now_s)
        return outcome

    def take_all(self, batches: Sequence[Batch], now_s: float) -> list[BatchOutcome | ReportError]:
        """Fold in batches as ``take`` would, one after the other; the events are the first's.

        Those that nothing is wrong with are folded in together, which takes little longer than one.
        """
        if len(batches) > 1 and can_merge(batches):
            merged = merge(batches)
            if intake.are_healthy(self._state, batches, merged, self.settings.max_world_size):
                return self._take_merged(batches, merged, now_s)
        return [self._told(batch, now_s) for batch in batches]

    def _told(self, batch: Batch, now_s: float) -> BatchOutcome | ReportError:
        try:
            return self.take(batch, now_s)
        except ReportError as error:
            return error

    def _take_merged(
        self, batches: Sequence[Batch], merged: Batch, now_s: float
    ) -> list[BatchOutcome | ReportError]:
        self._state.last_report_s = now_s
        outcome = BatchOutcome()
        self._take_fresh(merged, outcome, now_s)
        for batch in batches:
            intake.note_clock(self._state, batch, now_s)
        outcomes = [BatchOutcome(accepted=len(batch)) for batch in batches]
        outcomes[0].events = outcome.events
        return list(outcomes)

    def _take_part(self, batch: Batch, outcome: BatchOutcome, now_s: float) -> None:
        """Fold in reports of different ranks as far as they are new."""
        state = self._state
        fresh = intake.fresh_rows(state, batch)
        outcome.duplicates += len(batch) - len(fresh)
        state.counters.duplicates += len(batch) - len(fresh)
        if not fresh:
            return
        self._take_fresh(batch.only(fresh) if len(fresh) < len(batch) else batch, outcome, now_s)

    def _take_fresh(self, batch: Batch, outcome: BatchOutcome, now_s: float) -> None:
        """Fold in reports of different ranks that are new."""
        state = self._state
        outcome.accepted += len(batch)
        state.counters.reports += len(batch)
        known = [state.ranks.get(rank) for rank in batch.ranks]
        completed = intake.fold(state, batch, self.settings.decide)
        if len(self._speeds) != len(state.speeds):  # another attempt, with other ranks
            self._take_speeds()
        ranks_are_new = [state.ranks.get(rank) for rank in batch.ranks] != known
        outcome.events += self._follow_up(completed, ranks_are_new, now_s)

    def reject(self) -> None:
        """Count a report that could not even be decoded."""
        self._state.counters.rejected += 1

    def set_mode(self, mode: Mode, now_s: float) -> list[Event]:
        """Change what the balancer may do; "adapt" publishes at once what it recommends."""
        self._state.mode = mode
        self._think()
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

    def new_steps(self) -> list[StepRecord]:
        """Return the steps that have completed since this was last asked, each once."""
        steps = list(self._new_steps)
        self._new_steps.clear()
        return steps

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

    def _adopt(self, state: JobState) -> None:
        self._state = state
        self._take_speeds()
        self.advised = Advised(state)
        self.diagnosed = Diagnosed(state, self.settings)
        self._think()

    def _take_speeds(self) -> None:
        """Take over the ranks' speeds as far as they are believed: once a step, not a report."""
        self._speeds = speeds_to_act_on(self._state.speeds, self.settings.decide.speeds)

    def _think(self) -> None:
        self._decision = newest_decision(self._state, self.settings.decide)

    def _follow_up(
        self, completed: list[StepRecord], ranks_are_new: bool, now_s: float
    ) -> list[Event]:
        """Think again after new steps, and tell of everything that changed."""
        state = self._state
        before = self._speeds
        self._new_steps += completed
        if completed:
            believe(state, self.settings.decide.speeds)
            self._take_speeds()
        events = [Event(kind="step", data=views.step_row(record)) for record in completed]
        if completed:
            events += self._judge()
            self._think()
            log_decision(state, self._decision)
            model = views.model_view(state, points=False)
            events.append(Event(kind="model", data=model))
        # While ranks join one by one the list would be sent once for each of them.
        all_there = len(state.ranks) == state.log.world_size
        if (ranks_are_new and all_there) or look_different(before, self._speeds):
            rows = views.rank_rows(state, self.settings)
            events.append(Event(kind="ranks", data={"ranks": rows}))
        return events + (self._publish_decision(now_s) if completed else [])

    def _judge(self) -> list[Event]:
        """Look at the policy on trial; tell of its effect once there is one."""
        entry = follow_trial(self._state, self._speeds, self.settings.decide.trial)
        return [] if entry is None else [Event(kind="effect", data=policy_row(entry))]

    def _publish_decision(self, now_s: float) -> list[Event]:
        decision, state = self._decision, self._state
        if state.mode != "adapt" or decision is None or decision.policy is None:
            return []
        if decision.topic != "rollback":
            return self._publish(
                decision.policy, now_s, topic=decision.topic, gain=decision.predicted_gain
            )
        failed = find(state.policies, state.policy.version)
        count_rollback(state, failed)
        events = [] if failed is None else [Event(kind="effect", data=policy_row(failed))]
        target = state.policy.parent
        return events + self._publish(decision.policy, now_s, topic="rollback", restores=target)

    def _publish(
        self,
        policy: Policy,
        now_s: float,
        *,
        topic: Topic | None = None,
        gain: float | None = None,
        restores: int | None = None,
    ) -> list[Event]:
        state = self._state
        entry = put_in_force(
            state, policy, now_s, topic=topic, predicted_gain=gain, restores=restores
        )
        # What the balancer goes back to was in force before: its effect is known.
        if topic != "rollback":
            # A new attempt may have come since the last complete step.
            self._take_speeds()
            begin_trial(state, self._speeds, self.settings.decide.trial)
        self._think()
        log_decision(state, self._decision)
        return [Event(kind="policy", data=policy_row(entry))]
