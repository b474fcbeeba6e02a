"""The balancer behind its store: it may die at any moment, and what it acknowledged comes back.

Every delivery is checked: nothing is counted twice, a refused report changes nothing, and a twin
that was loaded from a dump decides as the one that was not interrupted.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from libra.balancer.events import Event
from libra.balancer.job import Job
from libra.balancer.policy import Policy
from libra.balancer.state import Mode
from libra.balancer.wire import Report, ReportError
from tests.loop_difference import difference

JOB = "job"
# Deliveries that a twin shadows, and refusals whose effect is looked at: both cost a dump.
_TWIN_DELIVERIES = 24
_LOOKED_AT = 3


class Balancer:
    """One job's brain, its store, and a ledger of what it was told.

    Attributes:
        job: the brain.
        published: how many policies were published by hand and by itself.
        liars: (attempt, rank) whose reports may be refused.
    """

    def __init__(self, mode: Mode) -> None:
        self.job = Job(JOB, mode=mode)
        self.liars: set[tuple[int, int]] = set()
        self.refused = 0
        self._twin: Job | None = None
        self._twin_left = 0
        self._ledger = _Ledger()
        self.flush()

    def deliver(self, report: Report, now_s: float) -> None:
        """Hand over a report; raise ``AssertionError`` for a broken promise."""
        if (report.attempt, report.rank) in self.liars and self.refused < _LOOKED_AT:
            before = told(self.job)
            if not self._apply(report, now_s):
                assert told(self.job) == before, "a refused report changed the job"
        else:
            self._apply(report, now_s)

    def publish(self, policy: Policy, now_s: float) -> None:
        """Publish by hand."""
        self._do(lambda job: job.publish(policy, now_s), by_hand=True)

    def set_mode(self, mode: Mode, now_s: float) -> None:
        self._do(lambda job: job.set_mode(mode, now_s))

    def flush(self) -> None:
        """Store what is known."""
        self._stored = self.job.dump(), self._ledger.copy()

    def crash(self) -> None:
        """Die, and come back from what was stored last: policies never go back."""
        version, checksum = self.job.policy.version, self.job.policy.checksum
        mode = self.job.mode
        body, ledger = self._stored
        self.job, self._ledger, self._twin = Job.load(body), ledger.copy(), None
        assert self.job.mode == mode, "a mode was lost with the balancer"
        assert (self.job.policy.version, self.job.policy.checksum) == (version, checksum), (
            f"policy {version} was acknowledged, policy {self.job.policy.version} came back"
        )

    def split(self) -> None:
        """Load a twin from a dump of this moment; it is to go the same way."""
        body = self.job.dump()
        self._twin, self._twin_left = Job.load(body), _TWIN_DELIVERIES
        assert self._twin.dump() == body, "a dump of a loaded dump differs from it"

    def check_counts(self) -> None:
        counters = _state(self.job)["counters"]
        expected = self._ledger.counts
        found = {name: counters[name] for name in expected}
        assert found == expected, f"reports were counted as {found}, delivered were {expected}"

    def _apply(self, report: Report, now_s: float) -> bool:
        """Return whether the report was taken."""
        version = self.job.policy.version
        try:
            events = self._both(lambda job: job.apply(report, now_s))
        except ReportError as error:
            if (report.attempt, report.rank) not in self.liars:
                raise AssertionError("an honest report was refused") from error
            self.refused += 1
            self._ledger.counts["rejected"] += 1
            return False
        self._ledger.note(report)
        self._settle(version, events)
        return True

    def _do(self, act: Callable[[Job], list[Event]], *, by_hand: bool = False) -> None:
        version = self.job.policy.version
        self._settle(version, self._both(act), by_hand=by_hand)

    def _settle(self, version: int, events: list[Event], *, by_hand: bool = False) -> None:
        """Check what happened, and store what must not be lost before anyone hears of it."""
        self._check_versions(version, events, by_hand)
        if any(event.kind in ("policy", "mode") for event in events):
            self.flush()

    def _both(self, act: Callable[[Job], list[Event]]) -> list[Event]:
        """Let job and twin do the same."""
        refusal: ReportError | None = None
        events: list[Event] = []
        try:
            events = act(self.job)
        except ReportError as error:
            refusal = error
        if self._twin is not None:
            self._check_twin(act, events, refusal)
        if refusal:
            raise refusal
        return events

    def _check_twin(
        self,
        act: Callable[[Job], list[Event]],
        events: list[Event],
        refusal: ReportError | None,
    ) -> None:
        assert self._twin is not None
        try:
            told = act(self._twin)
            kinds = [event.kind for event in told], [event.kind for event in events]
            other = difference(*kinds) or difference(_bodies(told), _bodies(events))
            assert not other, f"a job from a dump tells other events: {other}"
        except ReportError as error:
            if refusal is None:
                raise AssertionError("a job from a dump refuses more") from error
        self._twin_left -= 1
        if self._twin_left <= 0:
            other = difference(_state(self._twin), _state(self.job))
            assert not other, f"a job from a dump ends up elsewhere: {other}"
            self._twin = None

    def _check_versions(self, version: int, events: list[Event], by_hand: bool) -> None:
        """Versions grow one by one, each the child of the one before, and only when allowed."""
        rows = [event.data for event in events if event.kind == "policy"]
        for row in rows:
            chain = (row["parent"], row["version"])
            assert chain == (version, version + 1), f"policy {chain} came after {version}"
            version += 1
        assert self.job.policy.version == version, "a policy came into force without an event"
        allowed = 1 if by_hand or self.job.mode == "adapt" else 0
        assert len(rows) <= allowed, f"{len(rows)} policies at once in mode {self.job.mode}"


class _Ledger:
    """Which reports were taken, and as what each delivery has to count."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("reports", "rejected", "duplicates", "late"), 0)
        self._attempt = 0
        self._taken: set[tuple[str, int]] = set()

    def note(self, report: Report) -> None:
        key = report.agent, report.sequence
        if report.attempt < self._attempt:
            self.counts["late"] += 1
        elif key in self._taken:
            self.counts["duplicates"] += 1
        else:
            self._attempt = report.attempt
            self._taken.add(key)
            self.counts["reports"] += 1

    def copy(self) -> "_Ledger":
        other = _Ledger()
        other.counts = dict(self.counts)
        other._attempt, other._taken = self._attempt, set(self._taken)
        return other


def told(job: Job) -> dict[str, Any]:
    """Return all that a job would store, but for how many reports it refused."""
    state = _state(job)
    state["counters"]["rejected"] = 0
    return state


def _state(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = msgspec.msgpack.decode(job.dump(), strict=False)
    return state


def _bodies(events: list[Event]) -> list[Any]:
    return [(event.kind, event.data) for event in events]
