"""A job that is submitted again is taken again, and what was given up stays given up."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.job import Job
from libra.balancer.runs import MAX_RUNS, Runs
from libra.balancer.wire import Report
from tests.jobs import NOW_S, feed
from tests.simulated_job import SimulatedJob

JOB = SimulatedJob(world_size=2)


def reports_of(run: str, attempt: int, steps: range) -> list[Report]:
    """Return the reports of a launch."""
    made = replace(JOB, attempt=attempt).reports(steps)
    return [msgspec.structs.replace(r, run=run, agent=f"{run}-{r.agent}") for r in made]


def test_a_job_that_is_submitted_again_is_not_late() -> None:
    """A new run begins a new attempt though it calls itself 0 again; the old one is late."""
    job = Job("job")
    old = reports_of("slurm-1", 2, range(4))
    feed(job, old[:-1])
    feed(job, reports_of("slurm-2", 0, range(2)))
    shown = job.summary(NOW_S)
    assert (shown["attempt"], shown["late"], shown["reports"]) == (3, 0, 11)
    assert job.ranks()["steps"] == [0, 1]

    feed(job, old[-1:])
    feed(job, reports_of("slurm-2", 1, range(1)))

    shown = job.summary(NOW_S)
    assert (shown["attempt"], shown["late"], shown["reports"]) == (4, 1, 13)
    assert Job.load(job.dump()).dump() == job.dump()
    feed(Job.load(job.dump()), old)


def test_without_runs_attempts_keep_their_numbers() -> None:
    """Where no scheduler names launches, a higher attempt is newer and a lower one late."""
    job = Job("job")
    for attempt, expected in ((5, 5), (4, 5), (9, 9), (5, 9)):
        feed(job, reports_of("", attempt, range(1)))
        assert job.summary(NOW_S)["attempt"] == expected

    assert job.summary(NOW_S)["late"] == 4


LAUNCHES = st.lists(st.tuples(st.sampled_from(("", "a", "b", "c")), st.integers(0, 3)), min_size=1)


@given(LAUNCHES)
def test_no_launch_comes_back(launches: list[tuple[str, int]]) -> None:
    """In whatever order launches are heard of, ordinals grow and what was given up stays late."""
    runs, ordinal = Runs(), -1
    given_up: set[tuple[str, int]] = set()
    for run, attempt in launches:
        if runs.is_current(run, attempt):
            continue
        if runs.is_late(run, attempt):
            continue
        assert (run, attempt) not in given_up
        if runs.run is not None:
            given_up.add((runs.run, runs.attempt))
        begun = runs.begin(run, attempt, ordinal)
        assert begun > ordinal
        ordinal = begun
        assert runs.is_current(run, attempt)
        assert all(runs.is_late(*old) for old in given_up)


def test_runs_are_bounded() -> None:
    """A job that is launched ever anew remembers the newest 256 launches."""
    runs = Runs()
    for number in range(MAX_RUNS + 50):
        runs.begin(f"run-{number}", 0, number - 1)

    assert len(runs.seen) == MAX_RUNS
    assert runs.is_late("run-100", 0)
    assert runs.is_current(f"run-{MAX_RUNS + 49}", 0)


@pytest.mark.parametrize("world_size", [65_537, 1 << 20])
def test_a_claim_of_too_many_ranks_is_refused(world_size: int) -> None:
    """What a job's size costs is limited by a setting, and the claim names it."""
    report = replace(JOB, world_size=2).reports(range(1))[0]
    huge = msgspec.structs.replace(report, world_size=world_size)

    with pytest.raises(ValueError, match="max_world_size=65536"):
        feed(Job("job"), [huge])
