"""A diagnosis is made once a step, and is never older than what it is shown with."""

import pytest

from libra.balancer import diagnosed
from libra.balancer.causes import Diagnosis
from libra.balancer.diagnosis import diagnose
from libra.balancer.job import Job
from libra.balancer.policy import Policy
from libra.balancer.state import JobSettings, JobState
from tests.jobs import NOW_S, feed
from tests.simulated_job import SimulatedJob


def test_it_is_made_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a page asks, thousands of ranks are looked at once."""
    looks: list[JobState] = []

    def look(state: JobState, settings: JobSettings) -> Diagnosis:
        looks.append(state)
        return diagnose(state, settings)

    monkeypatch.setattr(diagnosed, "diagnose", look)
    job, ranks = Job("job"), SimulatedJob(world_size=4)
    feed(job, ranks.reports(range(12)))
    for _ in range(5):
        job.summary(NOW_S)
        job.diagnosis()

    assert len(looks) == 1


@pytest.mark.parametrize("change", ["step", "mode", "policy", "nothing yet"])
def test_whatever_changes_it_brings_another_look(change: str) -> None:
    """After each report what a summary says is what a fresh look would find."""
    job, ranks = Job("job"), SimulatedJob(world_size=4, slow=((2, 0.5),))
    feed(job, ranks.reports(range(2 if change == "nothing yet" else 12)))
    job.summary(NOW_S)
    if change == "mode":
        job.set_mode("frozen", NOW_S)
    elif change == "policy":
        job.publish(Policy(version=0, pooling=True), NOW_S)
    for report in ranks.reports(range(12, 14)):
        if change in ("step", "nothing yet"):
            feed(job, [report])
        found = diagnose(job.state, job.settings)
        told = job.summary(NOW_S)
        assert (told["diagnosis"], told["cause"]) == (found.sentence, found.cause)
