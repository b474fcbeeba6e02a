"""One job from first report to adapted policy, through every disorder that delivery can bring."""

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from libra.balancer.decide import DecideSettings
from libra.balancer.events import Event
from libra.balancer.job import Job, JobSettings
from libra.balancer.policy import HOME_POLICY
from libra.balancer.wire import Report, ReportError
from tests.simulated_job import BACKWARD, FORWARD, TRUTH, SimulatedJob

NOW_S = 1_700_000_000.0


def feed(job: Job, reports: Iterable[Report]) -> list[Event]:
    return [event for report in reports for event in job.apply(report, NOW_S)]


def views(job: Job) -> dict[str, Any]:
    return {
        "summary": job.summary(NOW_S),
        "skew": job.skew(600),
        "ranks": job.ranks(600),
        "model": job.model(),
        "exchange": job.exchange(600),
        "policies": job.policies(),
    }


def timeless(job: Job) -> dict[str, Any]:
    """Return what must not depend on the order of arrival; predictions of a moment do."""
    shown = views(job)
    for name in ("predicted_skew", "home_skew"):
        del shown["skew"][name], shown["summary"][name]
    del shown["summary"]["diagnosis"], shown["summary"]["decision"]
    for rank in shown["ranks"]["ranks"]:
        del rank["predicted_seconds"]
    for kind in shown["model"]["kinds"]:
        del kind["error"], kind["points"], kind["predicted"]
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


def kinds_of(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


def test_an_uneven_job_gets_one_policy_that_pools() -> None:
    job = Job("job", mode="adapt")
    reports = SimulatedJob().reports(range(12))

    events = feed(job, reports)

    assert [e.data["version"] for e in events if e.kind == "policy"] == [1]
    assert job.policy.pooling
    summary = job.summary(NOW_S)
    assert summary["policy_version"] == 1
    assert summary["policy_checksum"] == job.policy.checksum
    assert summary["recommended"] is None
    assert "Keep policy 1" in summary["decision"]
    entry = job.policies()["policies"][0]
    assert entry["predicted_gain"] > 0.1
    assert entry["created_s"] == NOW_S
    planted = TRUTH[FORWARD] + TRUTH[BACKWARD]
    assert entry["coefficients_seconds"][3] == pytest.approx(planted[3], rel=0.1)


def test_observing_recommends_and_frozen_does_nothing() -> None:
    observing, frozen = Job("job", mode="observe"), Job("job", mode="frozen")
    for job in (observing, frozen):
        assert "policy" not in kinds_of(feed(job, SimulatedJob().reports(range(6))))
        assert job.policy == HOME_POLICY

    recommended = observing.summary(NOW_S)["recommended"]
    assert recommended["predicted_gain"] > 0.1
    assert "Pool: perfect balance would save up to" in recommended["reason"]
    assert frozen.summary(NOW_S)["recommended"] is None
    assert frozen.decision is None
    assert kinds_of(observing.set_mode("adapt", NOW_S)) == ["mode", "policy"]
    assert kinds_of(frozen.set_mode("observe", NOW_S)) == ["mode"]
    assert frozen.summary(NOW_S)["recommended"] == recommended


def test_an_even_job_stays_home_and_says_so() -> None:
    job = Job("job", mode="adapt")
    feed(job, SimulatedJob(uneven=False, noise=0.005).reports(range(6)))

    summary = job.summary(NOW_S)
    assert job.policy == HOME_POLICY
    assert "Stay home" in summary["decision"]
    assert summary["diagnosis"].startswith("Even: skew 1.0")


def test_a_slow_rank_is_named_and_enters_the_policy() -> None:
    job = Job("job", mode="adapt")
    events = feed(job, SimulatedJob(world_size=6, slow=((3, 0.6),)).reports(range(30)))

    summary = job.summary(NOW_S)
    assert summary["diagnosis"].startswith("Slow rank: rank 3 on node1 runs at 0.")
    speeds = [row["speed"] for row in job.ranks(1)["ranks"]]
    assert speeds[3] == pytest.approx(0.6, rel=0.1)
    assert speeds[:3] + speeds[4:] == [1.0] * 5
    assert job.policy.speeds_permille[3] == pytest.approx(600, rel=0.1)
    assert any(e.kind == "ranks" and e.data["ranks"][3]["speed"] < 0.8 for e in events)


def test_one_slow_rank_of_two_does_not_pass_for_a_bad_model() -> None:
    """The model is the typical rank's; a third of the error would be the slow rank's speed."""
    job = Job("job", mode="adapt")
    feed(job, SimulatedJob(world_size=2, slow=((1, 0.5),)).reports(range(120)))

    assert all(kind["error"] < 0.25 for kind in job.model()["kinds"])
    slow, fast = sorted(job.policy.speeds_permille)
    assert fast / slow == pytest.approx(2.0, rel=0.1)


def test_uneven_data_is_no_slow_rank() -> None:
    job = Job("job")
    feed(job, SimulatedJob(world_size=6).reports(range(30)))

    assert job.summary(NOW_S)["diagnosis"].startswith("Uneven data: skew ")
    assert {row["speed"] for row in job.ranks(1)["ranks"]} == {1.0}


def test_too_little_evidence_is_said() -> None:
    job = Job("job")
    feed(job, SimulatedJob().reports([0])[:3])

    diagnosis = job.summary(NOW_S)["diagnosis"]
    assert diagnosis.startswith("Too little evidence: 0 complete steps of 2 needed, 3 of 4 ranks")


def test_changed_kernels_bring_a_successor_after_the_cool_down() -> None:
    """The token term grows tenfold: who is slow changes, so the policy must."""
    simulated = SimulatedJob()
    decide = DecideSettings(cooldown_steps=20)
    job = Job("job", mode="adapt", settings=JobSettings(half_life_steps=5, decide=decide))
    feed(job, simulated.reports(range(4)))
    assert job.policy.version == 1

    heavier = tuple((kind, tuple(c * [1, 30, 30, 1])) for kind, c in TRUTH.items())
    events = feed(job, replace(simulated, truth=heavier).reports(range(4, 40), policy_version=1))

    policies = job.policies()["policies"]
    assert [p["version"] for p in policies] == list(range(1, len(policies) + 1))
    assert [p["parent"] for p in policies] == list(range(len(policies)))
    assert len(policies) >= 2
    assert "predicted costs of ranks changed by" in policies[1]["reason"]
    published = [e for e in events if e.kind in ("step", "policy")]
    first = [e.kind for e in published].index("policy")
    assert first >= 16


def test_first_step_is_the_first_that_all_ranks_ran_under_it() -> None:
    simulated = SimulatedJob(world_size=2)
    job = Job("job", mode="adapt")
    feed(job, simulated.reports(range(4)))
    mixed = simulated.report([4], 0, sequence=4, policy_version=1)
    feed(job, [mixed, simulated.report([4], 1, sequence=4, policy_version=0)])
    assert job.policies()["policies"][0]["first_step"] is None

    feed(job, simulated.reports([5, 6], policy_version=1))

    assert job.policies()["policies"][0]["first_step"] == 5
    assert job.skew(3)["policy_version"] == [0, 1, 1]


def test_home_skew_is_what_the_lengths_alone_would_give() -> None:
    """Against the planted costs; the newest step is predicted by a model that saw the others."""
    simulated = SimulatedJob(noise=0.001)
    job = Job("job")
    feed(job, simulated.reports(range(8)))

    shown = job.skew(3)
    np.testing.assert_allclose(shown["home_skew"], shown["skew"], rtol=0.01)
    np.testing.assert_allclose(shown["predicted_skew"], shown["skew"], rtol=0.01)
    assert job.skew(8)["predicted_skew"][0] is None or job.skew(8)["predicted_skew"][0] > 1


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


def test_a_restarted_balancer_goes_on_as_if_nothing_happened() -> None:
    simulated = SimulatedJob(world_size=4, slow=((2, 0.7),))
    reports = simulated.reports(range(40))
    half = len(reports) // 2 + 1
    steady = Job("job", mode="adapt")
    feed(steady, reports[:half])

    revived = Job.load(steady.dump())

    assert revived.dump() == steady.dump()
    assert revived.mode == "adapt"
    assert revived.policy == steady.policy
    tail = [*reports[half - 9 : half], *reports[half:]]
    assert feed(revived, tail) == feed(steady, tail)
    assert views(revived) == views(steady)
    assert revived.summary(NOW_S)["duplicates"] == 9
    assert steady.policy.version >= 1


def test_a_dump_is_bounded_and_other_bytes_are_refused() -> None:
    job = Job("job")
    feed(job, SimulatedJob(world_size=1).reports(range(230), batch=10))
    assert len(job.skew(600)["steps"]) == 230

    assert len(Job.load(job.dump()).skew(600)["steps"]) == 200
    with pytest.raises(ValueError, match="schema"):
        Job.load(msgspec.msgpack.encode({"schema": 2}))


def test_a_new_attempt_starts_over_and_the_old_one_is_late() -> None:
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


def poisoned(report: Report, value: float) -> list[Report]:
    """Return copies of a report with one bad figure each, in every kind of place."""
    moments, step = report.moments[0], report.steps[0]
    kernel = step.kernels[0]
    swap = msgspec.structs.replace
    sums = [*moments.sums[:5], value, *moments.sums[6:]]
    point = (*moments.points[0][:4], value)
    features = (value, *kernel.features[1:])
    bad_steps = [
        swap(step, seconds=value),
        swap(step, wait_seconds=value),
        swap(step, home_features=(value, *step.home_features[1:])),
        swap(step, kernels=[swap(kernel, seconds=value)]),
        swap(step, kernels=[swap(kernel, features=features)]),
    ]
    bad_moments = [swap(moments, sums=sums), swap(moments, points=[point])]
    return [swap(report, steps=[bad]) for bad in bad_steps] + [
        swap(report, moments=[bad]) for bad in bad_moments
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
    report = SimulatedJob().reports([0])[0]
    sums = list(report.moments[0].sums)
    sums[3] /= 1000
    broken = [msgspec.structs.replace(report.moments[0], sums=sums)]

    with pytest.raises(ReportError, match="positive semidefinite") as caught:
        Job("job").apply(msgspec.structs.replace(report, moments=broken), NOW_S)

    assert (caught.value.field, caught.value.reason) == ("$.moments[0].sums", "inconsistent")


def test_reports_of_another_job_or_world_are_refused() -> None:
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
    job = Job("job")
    report = SimulatedJob(world_size=1).reports([0])[0]

    def with_kind(index: int) -> Report:
        kind = replace(FORWARD, head_dim=index)
        moments = [msgspec.structs.replace(report.moments[0], kind=kind)]
        return msgspec.structs.replace(report, sequence=index, moments=moments, steps=[])

    with pytest.raises(ReportError, match="too many kernel kinds"):
        feed(job, (with_kind(index) for index in range(1, 100)))
    assert len(job.model()["kinds"]) == 32


def test_the_error_is_of_points_that_the_model_had_not_seen() -> None:
    """A change of the truth shows in the error before the model has learned it."""
    job = Job("job")
    simulated = SimulatedJob(world_size=1, noise=0.0, uneven=False)
    feed(job, simulated.reports(range(8)))
    assert all(kind["error"] < 1e-6 for kind in job.model()["kinds"])

    doubled = tuple((kind, tuple(2 * c)) for kind, c in TRUTH.items())
    feed(job, replace(simulated, truth=doubled).reports([8]))

    # Five reports were judged and foreseen, and fade; of the sixth's doubled seconds one half
    # was not.
    errors = [kind["error"] for kind in job.model()["kinds"]]
    assert all(1 / 7 < error < 1 / 5 for error in errors)


def test_views_are_finite_json_and_liveness_follows_the_clock() -> None:
    empty, job = Job("job"), Job("job")
    feed(job, SimulatedJob().reports(range(6)))
    for shown in (views(empty), views(job)):
        assert json.loads(json.dumps(shown, allow_nan=False)) == shown

    ages = [0.0, 29.0, 30.0, 899.0, 900.0]
    states = [job.summary(NOW_S + age)["state"] for age in ages]
    assert states == ["active", "active", "stale", "stale", "finished"]
    assert job.summary(NOW_S + 29.0)["last_report_age_seconds"] == 29.0
    assert len(job.skew(4)["steps"]) == 4
    assert len(job.skew(0)["steps"]) == 0
    exchange = job.exchange(1)
    assert (exchange["sent_bytes"], exchange["wait_seconds"]) == ([4006], [0.003])


def test_dropped_counts_each_agent_once_across_attempts() -> None:
    job = Job("job")
    simulated = SimulatedJob(world_size=1)
    for sequence, dropped in ((0, 3), (1, 5)):
        report = simulated.report([sequence], 0, sequence=sequence)
        job.apply(msgspec.structs.replace(report, dropped=dropped), NOW_S)
    report = replace(simulated, attempt=1).report([0], 0, sequence=0)
    job.apply(msgspec.structs.replace(report, dropped=2), NOW_S)

    assert job.summary(NOW_S)["dropped"] == 7


def test_events_tell_of_ranks_once_they_are_all_there() -> None:
    events = feed(Job("job"), SimulatedJob(world_size=3).reports([0]))

    assert kinds_of(events) == ["step", "model", "ranks"]
    assert [row["node"] for row in events[-1].data["ranks"]] == ["node0", "node0", "node1"]
    assert events[0].data["step"] == 0
    assert len(events[0].data["slowdown"]) == 3


def test_a_published_policy_is_stamped() -> None:
    job = Job("job")
    wanted = msgspec.structs.replace(HOME_POLICY, version=77, pooling=True, reason="by hand")

    (event,) = job.publish(wanted, NOW_S)

    assert (event.kind, event.data["version"], event.data["parent"]) == ("policy", 1, 0)
    assert (job.policy.version, job.policy.created_s, job.policy.reason) == (1, NOW_S, "by hand")


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
