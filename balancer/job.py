"""One job's brain: reports in, events out, and a policy that follows from them.

Pure: time is passed in, nothing is read or sent. Reports may come twice, late or in any order.
What depends on their order tells what was known at a moment: a kind's prequential error, what
a step was predicted to cost, and when a policy was published.
"""

from typing import Self

import msgspec

from libra.balancer import intake, views
from libra.balancer.belief import believe
from libra.balancer.events import Event, View
from libra.balancer.evidence import Decision, Topic
from libra.balancer.history import find
from libra.balancer.lifecycle import (
    begin_trial,
    count_rollback,
    earlier,
    follow_trial,
    log_decision,
    put_in_force,
)
from libra.balancer.policy import Policy
from libra.balancer.policy_views import policies_view, policy_row
from libra.balancer.pool_views import RecommendedPool, pools_view, whatif_view
from libra.balancer.snapshot import decode_state, encode_state
from libra.balancer.speeds import look_different, speeds_to_act_on
from libra.balancer.state import JobSettings, JobState, Mode, new_state
from libra.balancer.state_evidence import newest_decision
from libra.balancer.step_record import StepRecord
from libra.balancer.wire import Report, ReportError


class Job:
    """The state of one job and everything that may happen to it."""

    def __init__(
        self, name: str, *, mode: Mode = "observe", settings: JobSettings | None = None
    ) -> None:
        self.settings = settings or JobSettings()
        self._adopt(new_state(name, mode, self.settings))

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def world_size(self) -> int:
        """Ranks of the newest attempt, 0 before any report."""
        return self._state.log.world_size

    @property
    def mode(self) -> Mode:
        return self._state.mode

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._state.policy

    @property
    def decision(self) -> Decision | None:
        """What the newest evidence calls for; None when frozen."""
        return self._decision

    def is_duplicate(self, report: Report) -> bool:
        """Was this very report folded in already?"""
        return intake.is_duplicate(self._state, report)

    def apply(self, report: Report, now_s: float) -> list[Event]:
        """Fold in a report; one seen before, or of an older attempt, is only counted.

        Raises ``ReportError``, with nothing folded in, for a report that cannot be true.
        """
        state = self._state
        try:
            intake.check(state, report)
        except ReportError:
            state.counters.rejected += 1
            raise
        if intake.is_late(state, report):
            state.counters.late += 1
            return []
        state.last_report_s = now_s
        if intake.is_duplicate(state, report):
            state.counters.duplicates += 1
            return []
        state.counters.reports += 1
        known_rank = state.ranks.get(report.rank)
        completed = intake.fold(state, report, self.settings.decide)
        if len(self._speeds) != len(state.speeds):  # another attempt, with other ranks
            self._take_speeds()
        rank_is_new = state.ranks[report.rank] != known_rank
        return self._follow_up(completed, rank_is_new, now_s)

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

    @classmethod
    def load(cls, body: bytes, settings: JobSettings | None = None) -> Self:
        """Return the job of a dump; raise ``ValueError`` for anything else."""
        state = decode_state(body)
        job = cls(state.name, mode=state.mode, settings=settings)
        state.fits.configure(
            min_observations=job.settings.decide.min_observations,
            half_life_steps=job.settings.half_life_steps,
        )
        job._adopt(state)
        return job

    def summary(self, now_s: float) -> View:
        pool = self._pool.of(self._state)
        return views.summary_view(self._state, self.settings, self._decision, now_s, pool)

    def skew(self, last: int = 600) -> View:
        return views.skew_view(self._state, last)

    def ranks(self, last: int = 600) -> View:
        return views.ranks_view(self._state, self.settings, last)

    def model(self) -> View:
        return views.model_view(self._state)

    def exchange(self, last: int = 600) -> View:
        return views.exchange_view(self._state, last)

    def policies(self) -> View:
        return policies_view(self._state)

    def diagnosis(self) -> View:
        return views.diagnosis_view(self._state, self.settings)

    def pools(self) -> View:
        return pools_view(self._state)

    def whatif(self) -> View:
        return whatif_view(self._state)

    def _adopt(self, state: JobState) -> None:
        self._state = state
        self._take_speeds()
        self._pool = RecommendedPool()
        self._think()

    def _take_speeds(self) -> None:
        """Take over the ranks' speeds as far as they are believed: once a step, not a report."""
        self._speeds = speeds_to_act_on(self._state.speeds, self.settings.decide.speeds)

    def _think(self) -> None:
        self._decision = newest_decision(self._state, self.settings.decide)

    def _follow_up(
        self, completed: list[StepRecord], rank_is_new: bool, now_s: float
    ) -> list[Event]:
        """Think again after new steps, and tell of everything that changed."""
        state = self._state
        before = self._speeds
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
        if (rank_is_new and all_there) or look_different(before, self._speeds):
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
