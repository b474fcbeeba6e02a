"""What is shown of a job: figures to look at, and views ready for JSON."""

from libra.balancer import views
from libra.balancer.diagnosed import NOT_LOOKED_AT, Diagnosed
from libra.balancer.events import View
from libra.balancer.evidence import Decision
from libra.balancer.policy import Policy
from libra.balancer.policy_views import policies_view
from libra.balancer.pool_views import Advised, pool_advice, pools_view, whatif_view
from libra.balancer.state import JobSettings, JobState, Mode
from libra.balancer.step_record import StepRecord
from libra.balancer.still import still


class JobViews:
    """One job to look at; nothing here changes it.

    Attributes:
        settings: how it is judged.
        diagnosed, advised: what takes long to find out, as it was found last.
    """

    settings: JobSettings
    diagnosed: Diagnosed
    advised: Advised
    _state: JobState
    _decision: Decision | None

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def state(self) -> JobState:
        """All that is known, to look at only."""
        return self._state

    @property
    def world_size(self) -> int:
        """Ranks of the newest attempt, 0 before any report."""
        return self._state.log.world_size

    @property
    def attempt(self) -> int:
        return self._state.log.attempt

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

    @property
    def clock_offsets_s(self) -> tuple[float, float] | None:
        """Least and largest offset of a node's clock; None where no report says when it left."""
        return self._state.clocks.range_s

    @property
    def clock_jumps(self) -> int:
        """How often a node's clock was set while it was watched."""
        return self._state.clocks.jumps

    @property
    def last_report_s(self) -> float | None:
        """Unix time of the newest report that was taken or had been before."""
        return self._state.last_report_s

    def liveness(self, now_s: float) -> str:
        """Return active, stale or finished, by the age of the newest report."""
        return views.liveness(views.report_age_s(self._state, now_s), self.settings)

    def still(self) -> JobState:
        """Return the state of this moment, for a thread to look at."""
        return still(self._state)

    def summary(self, now_s: float) -> View:
        """Return the head line, with what it takes long to find out brought up to date."""
        self.diagnosed.now()
        self.advised.now()
        return self.summary_as_known(now_s)

    @property
    def is_known(self) -> bool:
        """Are diagnosis and advice up to date?"""
        return self.diagnosed.current and self.advised.current

    def summary_as_known(self, now_s: float) -> View:
        """Return the head line with the diagnosis and the advice that were made last."""
        found, pool = self.diagnosed.newest or NOT_LOOKED_AT, self.advised.size
        return views.summary_view(self._state, self.settings, self._decision, found, now_s, pool)

    def skew(self, last: int = 600) -> View:
        return views.skew_view(self._state, last)

    def ranks(self, last: int = 600) -> View:
        return views.ranks_view(self._state, self.settings, last)

    def rank_evidence(self, last: int) -> tuple[list[StepRecord], JobState, JobSettings]:
        """Return what the view of ranks is made from, for a thread to make it."""
        return views.rank_records(self._state, last), self.still(), self.settings

    def model(self) -> View:
        return views.model_view(self._state)

    def exchange(self, last: int = 600) -> View:
        return views.exchange_view(self._state, last)

    def policies(self) -> View:
        return policies_view(self._state)

    def diagnosis(self) -> View:
        return views.diagnosis_view(self.diagnosed.now())

    def diagnosis_as_known(self) -> View:
        """Return the diagnosis that was made last."""
        return views.diagnosis_view(self.diagnosed.newest or NOT_LOOKED_AT)

    def pools(self) -> View:
        return pools_view(pool_advice(self._state))

    def whatif(self) -> View:
        return whatif_view(pool_advice(self._state))
