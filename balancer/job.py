"""One job's brain: reports in, events out, and a policy that follows from them.

Pure: time is passed in, nothing is read or sent. Reports may come twice, late or in any order.
What depends on their order tells what was known at a moment: a kind's prequential error, what
a step was predicted to cost, and when a policy was published.
"""

from typing import Self

import msgspec

from libra.balancer import intake, views
from libra.balancer.decide import Decision, decide
from libra.balancer.events import Event
from libra.balancer.policy import Policy
from libra.balancer.snapshot import decode_state, encode_state
from libra.balancer.state import (
    JobSettings,
    JobState,
    Mode,
    PolicyEntry,
    gather_evidence,
    measure_speeds,
    new_state,
)
from libra.balancer.steps import StepRecord
from libra.balancer.wire import Report, ReportError

__all__ = ["Job", "JobSettings", "Mode"]

_MAX_POLICIES = 256


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
        completed = intake.fold(state, report, self.settings.decide.speeds)
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

    def publish(self, policy: Policy, now_s: float) -> list[Event]:
        """Put a policy in force; it gets the next version number and its time of publishing."""
        return self._publish(policy, now_s, predicted_gain=None)

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

    def summary(self, now_s: float) -> views.View:
        return views.summary_view(self._state, self.settings, self._decision, now_s)

    def skew(self, last: int = 600) -> views.View:
        return views.skew_view(self._state, last)

    def ranks(self, last: int = 600) -> views.View:
        return views.ranks_view(self._state, self.settings, last)

    def model(self) -> views.View:
        return views.model_view(self._state)

    def exchange(self, last: int = 600) -> views.View:
        return views.exchange_view(self._state, last)

    def policies(self) -> views.View:
        return views.policies_view(self._state)

    def _adopt(self, state: JobState) -> None:
        self._state = state
        self._think()

    def _think(self) -> None:
        """Decide anew; the decision is a function of the state alone."""
        state = self._state
        self._decision: Decision | None = None
        if state.mode != "frozen":
            evidence = gather_evidence(state)
            self._decision = decide(evidence, state.policy, self.settings.decide)

    def _follow_up(
        self, completed: list[StepRecord], rank_is_new: bool, now_s: float
    ) -> list[Event]:
        """Think again after new steps, and tell of everything that changed."""
        state = self._state
        events = [Event(kind="step", data=views.step_row(record)) for record in completed]
        before = self._shown_speeds()
        if completed:
            state.speeds = measure_speeds(state)
            self._think()
            model = views.model_view(state, points=False)
            events.append(Event(kind="model", data=model))
        # While ranks join one by one the list would be sent once for each of them.
        all_there = len(state.ranks) == state.log.world_size
        if (rank_is_new and all_there) or before != self._shown_speeds():
            rows = views.rank_rows(state, self.settings)
            events.append(Event(kind="ranks", data={"ranks": rows}))
        return events + (self._publish_decision(now_s) if completed else [])

    def _shown_speeds(self) -> dict[int, float]:
        """Return the speeds that differ from nominal, as exact as anyone looks."""
        speeds = (speed.speed(self.settings.decide.speeds) for speed in self._state.speeds)
        return {rank: round(speed, 2) for rank, speed in enumerate(speeds) if speed != 1.0}

    def _publish_decision(self, now_s: float) -> list[Event]:
        decision = self._decision
        if self._state.mode != "adapt" or decision is None or decision.policy is None:
            return []
        return self._publish(decision.policy, now_s, predicted_gain=decision.predicted_gain)

    def _publish(
        self, policy: Policy, now_s: float, *, predicted_gain: float | None
    ) -> list[Event]:
        state, parent = self._state, self._state.policy.version
        state.policy = msgspec.structs.replace(
            policy, version=parent + 1, parent=parent, created_s=now_s
        )
        entry = PolicyEntry(policy=state.policy, predicted_gain=predicted_gain)
        state.policies = [*state.policies, entry][-_MAX_POLICIES:]
        state.published_at = state.log.complete
        self._think()
        return [Event(kind="policy", data=views.policy_row(entry))]
