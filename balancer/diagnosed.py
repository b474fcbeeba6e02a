"""A job's diagnosis, made once a step: with thousands of ranks it takes milliseconds."""

from libra.balancer.causes import Diagnosis
from libra.balancer.diagnosis import diagnose
from libra.balancer.state import JobSettings, JobState

NOT_LOOKED_AT = Diagnosis(
    cause="too little evidence", sentence="Too little evidence: its steps are being looked at."
)


class Diagnosed:
    """The diagnosis of one job.

    Attributes:
        newest: the last one made; None before any.
    """

    def __init__(self, state: JobState, settings: JobSettings) -> None:
        self._state = state
        self._settings = settings
        self._of: tuple[object, ...] | None = None
        self.newest: Diagnosis | None = None

    @property
    def current(self) -> bool:
        """Would another look find the same?"""
        return self._of == self.moment()

    def now(self) -> Diagnosis:
        """Return the diagnosis of this moment."""
        if self.newest is None or not self.current:
            self.keep(diagnose(self._state, self._settings), self.moment())
        assert self.newest is not None
        return self.newest

    def keep(self, found: Diagnosis, moment: tuple[object, ...]) -> None:
        """Keep a diagnosis that was made from the state of a moment."""
        self.newest = found
        # While there is little to go on, what is said changes with every report.
        told = found.steps >= self._settings.decide.min_steps
        self._of = moment if told else None

    def moment(self) -> tuple[object, ...]:
        """Return what differs when another diagnosis may be found."""
        state = self._state
        log = state.log
        steps = (log.attempt, log.world_size, log.complete, log.incomplete)
        return (*steps, state.policy.version, state.mode, tuple(state.doubts.items()))
