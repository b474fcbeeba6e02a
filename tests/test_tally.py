"""What is counted of a job's events: skew by step, and how long a policy takes to spread."""

import pytest

from libra.balancer.events import Event
from libra.balancer.job import Job
from libra.balancer.tally import Tally
from libra.balancer.telemetry import Telemetry
from tests.jobs import NOW_S, feed
from tests.simulated_job import SimulatedJob


def step(number: int, version: int, skew: float = 1.2) -> Event:
    return Event(kind="step", data={"step": number, "skew": skew, "policy_version": version})


def policy(version: int) -> Event:
    return Event(kind="policy", data={"version": version})


def test_a_policy_has_spread_when_a_step_runs_under_it() -> None:
    """Steps under an older policy tell nothing; one under a newer ends the wait for all before."""
    telemetry = Telemetry()
    tally = Tally(telemetry)
    tally.count([policy(1)], None, 100.0)
    tally.count([step(5, 0), policy(2)], None, 102.0)
    assert sum(telemetry.propagation.counts) == 0
    tally.count([step(6, 2)], None, 105.0)
    tally.count([step(7, 2)], None, 109.0)

    assert sum(telemetry.propagation.counts) == 2
    assert telemetry.propagation.total == pytest.approx((105 - 100) + (105 - 102))


def test_every_complete_step_counts_once() -> None:
    """The histogram holds what the steps' events told, and knows the slowest rank of one."""
    job, tally = Job("job"), Tally(Telemetry())
    events = feed(job, SimulatedJob(world_size=4).reports(range(3)))
    newest = job.state.log.records[-1]
    for event in events:
        tally.count([event], newest, NOW_S)

    assert sum(tally.skew.counts) == 3
    assert tally.skew.total == pytest.approx(sum(r.skew for r in job.state.log.records))
    named = [e for e in tally.skew.exemplars if e is not None and e.labels["step"] == "2"]
    assert [e.labels["rank"] for e in named] == [str(int(newest.slowdown.argmax()))]


def test_policies_that_no_step_runs_are_forgotten() -> None:
    """A job whose ranks are gone does not pile up what is waited for."""
    telemetry = Telemetry()
    tally = Tally(telemetry)
    for version in range(1, 1001):
        tally.count([policy(version)], None, 0.0)
    tally.count([step(1, 1000)], None, 1.0)

    assert sum(telemetry.propagation.counts) == 64
