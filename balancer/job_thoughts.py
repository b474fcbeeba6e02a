"""What a job concludes from its steps: what is new of its ranks, and the policy that follows.

Pure: time is passed in, nothing is read or sent.
"""

from collections import deque
from collections.abc import Iterable

from libra.balancer import intake, views
from libra.balancer.belief import believe
from libra.balancer.diagnosed import Diagnosed
from libra.balancer.events import Event
from libra.balancer.evidence import Topic
from libra.balancer.history import find
from libra.balancer.job_views import JobViews
from libra.balancer.lifecycle import (
    begin_trial,
    count_rollback,
    follow_trial,
    log_decision,
    put_in_force,
)
from libra.balancer.policy import Policy
from libra.balancer.policy_views import policy_row
from libra.balancer.pool_views import Advised
from libra.balancer.speeds import Float64, look_different, speeds_to_act_on
from libra.balancer.state import JobState
from libra.balancer.state_evidence import newest_decision
from libra.balancer.step_record import StepRecord
from libra.balancer.steps import RING_STEPS

# Steps that wait to be thought about; each holds what its ranks said of it.
_MAX_WHOLE = 4


class JobThoughts(JobViews):
    """One job that draws conclusions: ``think`` puts whole steps together and follows them up.

    A step of many ranks takes milliseconds to think about, so who takes in reports for many jobs
    may let it wait for a quieter moment.
    """

    _speeds: Float64

    @property
    def has_whole_steps(self) -> bool:
        """Do steps wait for ``think``?"""
        return bool(self._whole)

    @property
    def may_wait(self) -> bool:
        """Is there something to think about, and no more than may wait?"""
        return 0 < len(self._whole) <= _MAX_WHOLE

    def think(self, now_s: float) -> list[Event]:
        """Conclude what follows from the steps that are whole; tell of everything that changed."""
        before, whole = self._speeds, list(self._whole)
        self._whole.clear()
        completed = intake.complete(self._state, whole, self.settings.decide)
        events = self._follow_up(completed) if completed else []
        if self._ranks_show_change(before):
            rows = views.rank_rows(self._state, self.settings)
            events.append(Event(kind="ranks", data={"ranks": rows}))
        self._ranks_are_new = False
        return events + (self._publish_decision(now_s) if completed else [])

    def new_steps(self) -> list[StepRecord]:
        """Return the steps that have completed since this was last asked, each once."""
        steps = list(self._new_steps)
        self._new_steps.clear()
        return steps

    def _note_whole(self, steps: Iterable[int]) -> None:
        self._whole |= dict.fromkeys(steps)

    def _adopt(self, state: JobState) -> None:
        self._state = state
        self._new_steps: deque[StepRecord] = deque(maxlen=RING_STEPS)
        # In the order in which they became so; a balancer that died may have left some.
        self._whole = dict.fromkeys(state.log.whole())
        self._ranks_are_new = False
        self._take_speeds()
        self.advised = Advised(state)
        self.diagnosed = Diagnosed(state, self.settings)
        self._decide()

    def _take_speeds(self) -> None:
        """Take over the ranks' speeds as far as they are believed: once a step, not a report."""
        self._speeds = speeds_to_act_on(self._state.speeds, self.settings.decide.speeds)

    def _decide(self) -> None:
        self._decision = newest_decision(self._state, self.settings.decide)

    def _follow_up(self, completed: list[StepRecord]) -> list[Event]:
        """Think again after new steps."""
        state = self._state
        self._new_steps += completed
        believe(state, self.settings.decide.speeds)
        self._take_speeds()
        events = [Event(kind="step", data=views.step_row(record)) for record in completed]
        events += self._judge()
        self._decide()
        log_decision(state, self._decision)
        return [*events, Event(kind="model", data=views.model_view(state, points=False))]

    def _ranks_show_change(self, before: Float64) -> bool:
        # While ranks join one by one the list would be sent once for each of them.
        all_there = len(self._state.ranks) == self._state.log.world_size
        if self._ranks_are_new and all_there:
            return True
        return self._speeds is not before and look_different(before, self._speeds)

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
        self._decide()
        log_decision(state, self._decision)
        return [Event(kind="policy", data=policy_row(entry))]
