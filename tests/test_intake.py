"""Whatever disorder delivery brings, a job knows the same; what cannot be true never gets in."""

import itertools
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from libra.balancer.job import Job
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    NUM_WAVE_SUMS,
    WAVE_FEATURES,
    Report,
    ReportError,
    WaveMoments,
)
from tests.jobs import NOW_S, feed, kinds_of, views
from tests.simulated_job import FORWARD, SimulatedJob


def timeless(job: Job) -> dict[str, Any]:
    """Return what must not depend on the order of arrival; predictions of a moment do."""
    shown = views(job)
    for name in ("predicted_skew", "home_skew"):
        del shown["skew"][name], shown["summary"][name]
    del shown["summary"]["decision"], shown["policies"]["decisions"]
    # Followed step by step, as steps complete.
    for name in ("since_step", "since_seconds", "recovered_seconds"):
        del shown["summary"][name]
    for rank in shown["ranks"]["ranks"]:
        del rank["predicted_seconds"]
    for kind in shown["model"]["kinds"]:
        del kind["error"], kind["points"], kind["predicted"]
        del kind["error_steps"], kind["error_course"]
        # Of collinear columns rounding changes the uncertainty more than the coefficients.
        del kind["intervals"]
    shown["model"]["kinds"].sort(key=str)
    return shown


def assert_close(left: Any, right: Any) -> None:
    """Compare two views, numbers to what rounding does to collinear coefficients."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_close(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_close(one, other)
    elif isinstance(left, float) and isinstance(right, float):
        assert left == pytest.approx(right, rel=1e-4)
    else:
        assert left == right


@pytest.mark.parametrize("seed", range(4))
def test_any_delivery_gives_the_same_state(seed: int) -> None:
    """Duplicated and reordered reports leave what is known as it is, to rounding."""
    simulated = SimulatedJob(slow=((1, 0.7),))
    reports = simulated.reports(range(24), batch=2)
    rng = np.random.default_rng(seed)
    # Reports overtake each other within a window; every third one comes twice.
    late = np.arange(len(reports)) + rng.uniform(0, 20, len(reports))
    shuffled = [reports[i] for i in np.argsort(late)]
    twice = list(itertools.chain(*([r, r] if i % 3 == 0 else [r] for i, r in enumerate(shuffled))))
    in_order, disordered = Job("job"), Job("job")

    feed(in_order, reports)
    feed(disordered, [*twice, *twice])

    expected, actual = timeless(in_order), timeless(disordered)
    assert actual["summary"].pop("duplicates") == 2 * len(twice) - len(reports)
    assert expected["summary"].pop("duplicates") == 0
    expected["summary"]["recommended"] = actual["summary"]["recommended"] = None
    assert_close(actual, expected)
    assert in_order.decision is not None
    assert disordered.decision is not None
    assert (in_order.decision.policy is None) == (disordered.decision.policy is None)


def test_a_duplicate_is_exactly_nothing() -> None:
    """A report that comes again changes no figure but the count of duplicates."""
    job = Job("job", mode="adapt")
    reports = SimulatedJob().reports(range(6))
    feed(job, reports)
    before = views(job)

    assert all(job.is_duplicate(report) for report in reports)
    assert feed(job, reports) == []

    after = views(job)
    assert after["summary"].pop("duplicates") == len(reports)
    before["summary"].pop("duplicates")
    assert after == before


def test_a_new_attempt_starts_over_and_the_old_one_is_late() -> None:
    """A new attempt replaces ranks and repeated steps, keeps the fit, and ends the old attempt."""
    old = SimulatedJob(world_size=4)
    job = Job("job")
    reports = old.reports(range(10))
    feed(job, reports[:-2])
    assert job.skew(600)["steps"] == list(range(9))
    observations = job.model()["kinds"][0]["count"]

    new = replace(old, attempt=1, world_size=2)
    feed(job, new.reports([6, 7]))
    late = feed(job, reports[-2:])

    summary = job.summary(NOW_S)
    assert late == []
    assert (summary["attempt"], summary["world_size"], summary["late"]) == (1, 2, 2)
    assert job.skew(600)["steps"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert job.ranks(600)["steps"] == [6, 7]
    assert [row["rank"] for row in job.ranks(600)["ranks"]] == [0, 1]
    assert job.model()["kinds"][0]["count"] > observations


def test_an_agent_that_catches_up_brings_many_steps_at_once() -> None:
    """After an outage one report completes more steps than keep features; all are priced."""
    simulated = SimulatedJob(world_size=2)
    job = Job("job", mode="observe")
    feed(job, simulated.reports(range(10)))
    feed(job, simulated.reports(range(10, 90), batch=80))

    shown = job.skew(600)
    assert shown["steps"] == list(range(90))
    assert None not in shown["predicted_skew"][10:]


def test_a_step_that_completes_long_after_its_time_is_kept_without_a_price() -> None:
    """One rank's report that comes 40 steps late completes its step and harms nothing."""
    simulated = SimulatedJob(world_size=2)
    job = Job("job", mode="observe")
    reports = simulated.reports(range(60))
    held = reports.pop(2 * 20 + 1)
    feed(job, [*reports, held])

    shown = job.skew(600)
    assert shown["steps"] == list(range(60))
    assert shown["predicted_skew"][20] is None


@pytest.mark.parametrize("name", ["dropped", "set_aside"])
def test_counts_are_of_each_agent_once_across_attempts(name: str) -> None:
    """What agents lost or kept out is summed over all of them, each by its newest count."""
    job = Job("job")
    simulated = SimulatedJob(world_size=1)
    for sequence, count in ((0, 3), (1, 5)):
        report = simulated.report([sequence], 0, sequence=sequence)
        job.apply(msgspec.structs.replace(report, **{name: count}), NOW_S)
    report = replace(simulated, attempt=1).report([0], 0, sequence=0)
    job.apply(msgspec.structs.replace(report, **{name: 2}), NOW_S)

    assert job.summary(NOW_S)[name] == 7


def poisoned(report: Report, value: float) -> list[Report]:
    """Return copies of a report with one bad figure each, in every kind of place."""
    moments, step = report.moments[0], report.steps[0]
    kernel = step.kernels[0]
    swap = msgspec.structs.replace
    sums = [*moments.sums[:5], value, *moments.sums[6:]]
    point = (*moments.points[0][:4], value, *moments.points[0][5:])
    features = (value, *kernel.features[1:])
    bad_steps = [
        swap(step, seconds=value),
        swap(step, wait_seconds=value),
        swap(step, home_features=(value, *step.home_features[1:])),
        swap(step, home_pairs=[1.0, value]),
        swap(step, kernels=[swap(kernel, seconds=value)]),
        swap(step, kernels=[swap(kernel, features=features)]),
    ]
    bad_moments = [swap(moments, sums=sums), swap(moments, points=[point])]
    waves = WaveMoments(transport="gloo", sums=[value] * NUM_WAVE_SUMS)
    return [
        *(swap(report, steps=[bad]) for bad in bad_steps),
        *(swap(report, moments=[bad]) for bad in bad_moments),
        swap(report, waves=[waves]),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_nothing_impossible_gets_in(value: float) -> None:
    """A bad figure is refused whole: the same sequence number is accepted afterwards."""
    simulated = SimulatedJob(world_size=1)
    job = Job("job", mode="adapt")
    feed(job, simulated.reports(range(4)))
    before = views(job)
    good = simulated.report([4], 0, sequence=4)
    bad = poisoned(good, value)

    for report in bad:
        with pytest.raises(ReportError):
            job.apply(report, NOW_S)

    after = views(job)
    assert after["summary"].pop("rejected") == len(bad)
    before["summary"].pop("rejected")
    assert after == before
    assert "step" in kinds_of(job.apply(good, NOW_S))


def test_moments_that_contradict_themselves_are_refused() -> None:
    """Sums that no kernel calls can have are refused with their place: they would spoil the fit."""
    report = SimulatedJob().reports([0])[0]
    sums = list(report.moments[0].sums)
    sums[3] /= 1000
    broken = [msgspec.structs.replace(report.moments[0], sums=sums)]

    with pytest.raises(ReportError, match="positive semidefinite") as caught:
        Job("job").apply(msgspec.structs.replace(report, moments=broken), NOW_S)

    assert (caught.value.field, caught.value.reason) == ("$.moments[0].sums", "inconsistent")


def test_waves_that_contradict_themselves_are_refused() -> None:
    """Sums that no waves can have are refused with their place, as those of kernels are."""
    report = SimulatedJob().reports([0])[0]
    moments = Moments(num_features=len(WAVE_FEATURES))
    moments.add([[1, 1e6], [3, 2e6]], [0.1, 0.2])
    sums = moments.sums.tolist()
    good = WaveMoments(transport="gloo", sums=sums)
    bad = WaveMoments(transport="gloo", sums=[*sums[:3], sums[3] / 1000, *sums[4:]])
    Job("job").apply(msgspec.structs.replace(report, waves=[good]), NOW_S)

    with pytest.raises(ReportError, match="positive semidefinite") as caught:
        Job("job").apply(msgspec.structs.replace(report, waves=[good, bad]), NOW_S)

    assert (caught.value.field, caught.value.reason) == ("$.waves[1].sums", "inconsistent")


def test_reports_of_another_job_or_world_are_refused() -> None:
    """A report of another job or number of ranks is refused with its reason, and counted."""
    job = Job("job")
    reports = SimulatedJob().reports([0, 1])
    feed(job, reports[:4])

    with pytest.raises(ReportError) as wrong_job:
        job.apply(msgspec.structs.replace(reports[4], job="other"), NOW_S)
    with pytest.raises(ReportError) as wrong_size:
        job.apply(msgspec.structs.replace(reports[4], world_size=8), NOW_S)

    assert wrong_job.value.reason == "wrong_job"
    assert wrong_size.value.reason == "world_size"
    assert job.summary(NOW_S)["rejected"] == 2
    job.reject()
    assert job.summary(NOW_S)["rejected"] == 3


def test_kernel_kinds_are_bounded() -> None:
    """However many kernel kinds an agent names, a job keeps 32 and refuses more."""
    job = Job("job")
    report = SimulatedJob(world_size=1).reports([0])[0]

    def with_kind(index: int) -> Report:
        kind = replace(FORWARD, head_dim=index)
        moments = [msgspec.structs.replace(report.moments[0], kind=kind)]
        return msgspec.structs.replace(report, sequence=index, moments=moments, steps=[])

    with pytest.raises(ReportError, match="too many kernel kinds"):
        feed(job, (with_kind(index) for index in range(1, 100)))
    assert len(job.model()["kinds"]) == 32
