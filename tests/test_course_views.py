"""What pages draw of a job: slowdowns, one rank's course, pools' loads, and what was saved."""

import struct

import numpy as np
import pytest

from libra.balancer.job import Job
from libra.balancer.load_view import loads_view
from libra.balancer.policy import HOME_POLICY
from libra.balancer.rank_view import rank_view
from libra.balancer.slowdown_body import MAX_CELLS, affordable, slowdown_body
from libra.balancer.views import model_view
from tests.jobs import NOW_S
from tests.planned_job import PlannedJob

STEPS = 40


def run_job(planned: PlannedJob, steps: int = STEPS, mode: str = "observe") -> Job:
    job = Job("job", mode=mode)  # type: ignore[arg-type]
    planned.run(job, steps)
    return job


def test_slowdowns_in_bytes_are_those_in_json() -> None:
    """To the thousandth, in the order that is described."""
    job = run_job(PlannedJob(world_size=6))
    view = job.ranks()

    body = slowdown_body(job.state.log.current(600), 6)
    magic, steps, ranks, nothing = struct.unpack_from("<4sIII", body)
    numbers = np.frombuffer(body, "<f8", steps, 16)
    cells = np.frombuffer(body, "<u2", steps * ranks, 16 + 8 * steps).reshape(steps, ranks)

    assert (magic, ranks, nothing) == (b"LSD1", 6, 0)
    assert numbers.tolist() == view["steps"]
    # Half a thousandth of rounding, on either side of what JSON rounds to four digits.
    assert np.abs(cells / 1000 - np.array(view["slowdown"])).max() <= 0.00056
    assert len(body) == 16 + steps * (8 + 2 * ranks)


def test_an_answer_of_slowdowns_is_bounded() -> None:
    """Fewer steps of more ranks, and one at least."""
    assert affordable(600, 4096) == 600
    assert affordable(600, MAX_CELLS // 100) == 100
    assert affordable(600, 10 * MAX_CELLS) == 1
    assert affordable(600, 0) == 600


def test_a_slow_rank_shows_in_its_pace_and_not_in_its_work() -> None:
    """Slowdown mixes both; pace is what its own work does not explain."""
    planned = PlannedJob(world_size=4)
    planned.slowness[2] = 1.5
    job = run_job(planned)

    def median_pace(rank: int) -> float:
        view = rank_view(*job.rank_evidence(600), rank)
        known = [pace for pace in view["pace"] if pace is not None]
        assert len(view["steps"]) == len(view["slowdown"]) == len(view["pace"]) == STEPS
        assert view["rank"] == rank
        assert view["node"]
        return float(np.median(known))

    # Kernels scatter by a few percent, and the typical rank is a median of four.
    assert median_pace(2) == pytest.approx(1.5, rel=0.1)
    assert median_pace(0) == pytest.approx(1.0, rel=0.1)


def test_an_unknown_rank_is_said_to_be_unknown() -> None:
    """Not shown as empty."""
    job = run_job(PlannedJob(world_size=4))
    with pytest.raises(LookupError, match="no rank 4 of this attempt has reported"):
        rank_view(*job.rank_evidence(600), 4)


def test_loads_are_the_slowest_ranks_of_pools() -> None:
    """Measured seconds are the step's own; plain Ulysses' are as much work, and never below the
    bound.
    """
    job = run_job(PlannedJob(world_size=8))
    record = job.state.log.records[-1]
    view = loads_view(job.state)

    pools = np.array([job.state.ranks[rank].pool for rank in range(8)])
    for at, pool in enumerate(view["pools"]):
        own = record.kernel_seconds[pools == pool]
        assert view["measured_seconds"][at] == own.max()
        assert record.kernel_seconds[view["slowest_rank"][at]] == own.max()
        assert view["ranks"][at] == len(own)
        assert view["home_seconds"][at] >= view["pool_bound_seconds"][at]
    assert view["bound_seconds"] == pytest.approx(record.kernel_seconds.mean())
    assert max(view["home_seconds"]) >= view["bound_seconds"]
    assert view["step"] == record.step


def test_loads_wait_for_a_step() -> None:
    """Before there is one, nothing is made up."""
    view = loads_view(Job("job").state)
    assert view["pools"] == []
    assert view["bound_seconds"] is None


def test_what_is_recovered_grows_under_a_good_policy_alone() -> None:
    """Under plain Ulysses there is nothing to recover; then it is what the ranks no longer wait."""
    watched = run_job(PlannedJob(world_size=8))
    assert watched.state.log.recovered_seconds == 0.0
    assert watched.policy == HOME_POLICY

    adapted = run_job(PlannedJob(world_size=8), steps=120, mode="adapt")
    log = adapted.state.log
    assert adapted.policy.version > 0
    under = [r for r in log.records if r.policy_version]
    by_hand = sum((r.home_skew - r.skew) * r.kernel_seconds.sum() for r in under if r.home_skew)
    assert log.recovered_seconds == pytest.approx(by_hand, rel=1e-3)
    assert log.recovered_seconds > 0


def test_the_summary_says_since_when() -> None:
    """Skew that never was otherwise began with the first step; small curves have the newest."""
    job = run_job(PlannedJob(world_size=8, sigma=1.5))
    summary = job.summary(NOW_S)
    assert summary["since_step"] is not None
    assert summary["since_seconds"] > 0
    assert summary["recent_skew"] == [round(r.skew, 3) for r in job.state.log.records[-32:]]


def test_coefficients_have_intervals_and_errors_a_course() -> None:
    """Each coefficient lies within its interval, and the newest error ends the course."""
    job = run_job(PlannedJob(world_size=8), steps=100)
    for kind in model_view(job.state)["kinds"]:
        low, high = np.array(kind["intervals"]).T
        assert (low <= kind["coefficients"]).all()
        assert (kind["coefficients"] <= high).all()
        assert kind["error_course"][-1] == kind["error"]
        assert kind["error_steps"] == sorted(set(kind["error_steps"]))


def test_a_model_that_is_assumed_has_no_intervals() -> None:
    """There is nothing yet to be certain about."""
    job = run_job(PlannedJob(world_size=2), steps=1)
    assert all(kind["intervals"] is None for kind in model_view(job.state)["kinds"])
