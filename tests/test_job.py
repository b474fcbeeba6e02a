"""One job from first report to adapted policy, in what it shows, and over a restart."""

import json
from base64 import b64decode
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from libra.balancer.decide_settings import DecideSettings
from libra.balancer.job import Job
from libra.balancer.policy import HOME_POLICY
from libra.balancer.state import JobSettings
from tests.jobs import NOW_S, feed, kinds_of, views
from tests.simulated_job import BACKWARD, FORWARD, TRUTH, SimulatedJob


def test_an_uneven_job_gets_one_policy_that_pools() -> None:
    """In mode adapt an uneven job gets a policy by its measured costs, and keeps it."""
    job = Job("job", mode="adapt")
    reports = SimulatedJob().reports(range(12))

    events = feed(job, reports)

    assert [e.data["version"] for e in events if e.kind == "policy"] == [1]
    assert job.policy.pooling
    summary = job.summary(NOW_S)
    assert summary["policy_version"] == 1
    assert summary["policy_checksum"] == job.policy.checksum
    assert summary["recommended"] is None
    assert summary["decision"].startswith("Policy 1 is on trial against policy 0")
    entry = job.policies()["policies"][0]
    assert entry["predicted_gain"] > 0.1
    assert entry["created_s"] == NOW_S
    planted = TRUTH[FORWARD] + TRUTH[BACKWARD]
    assert entry["coefficients_seconds"][3] == pytest.approx(planted[3], rel=0.1)


def test_observing_recommends_and_frozen_does_nothing() -> None:
    """Observing only recommends and frozen not even that, until the mode is changed."""
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
    """An even job is left alone, and decision and diagnosis say why."""
    job = Job("job", mode="adapt")
    feed(job, SimulatedJob(uneven=False, noise=0.005).reports(range(6)))

    summary = job.summary(NOW_S)
    assert job.policy == HOME_POLICY
    assert "Stay home" in summary["decision"]
    assert summary["diagnosis"].startswith("Even: skew 1.0")


def test_a_slow_rank_is_named_and_enters_the_policy() -> None:
    """A slow rank is named with its node, and the policy counts with its speed."""
    job = Job("job", mode="adapt")
    events = feed(job, SimulatedJob(world_size=6, slow=((3, 0.6),)).reports(range(30)))

    summary = job.summary(NOW_S)
    assert "ank 3 on node1 runs at 0." in summary["diagnosis"]
    assert 0 < summary["lost_seconds"]["slow rank"] < summary["lost_seconds"]["uneven data"]
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
    """No rank is blamed for its long documents: the diagnosis is uneven data."""
    job = Job("job")
    feed(job, SimulatedJob(world_size=6).reports(range(30)))

    assert job.summary(NOW_S)["diagnosis"].startswith("Uneven data: skew ")
    assert {row["speed"] for row in job.ranks(1)["ranks"]} == {1.0}


def test_too_little_evidence_is_said() -> None:
    """Before there is enough to judge by, the diagnosis says how many steps and ranks there are."""
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

    heavier = tuple((kind, tuple(c * [1, 30, 30, 1, 1, 1])) for kind, c in TRUTH.items())
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
    """A policy is said to be in effect from the first step that all ranks ran under it."""
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
    """Where nothing moves, predicted and home skew are the measured one, to within 1 %."""
    simulated = SimulatedJob(noise=0.001)
    job = Job("job")
    feed(job, simulated.reports(range(8)))

    shown = job.skew(8)
    np.testing.assert_allclose(shown["home_skew"], shown["skew"], rtol=0.01)
    np.testing.assert_allclose(shown["predicted_skew"], shown["skew"], rtol=0.01)


def test_a_restarted_balancer_goes_on_as_if_nothing_happened() -> None:
    """A job from a dump goes on like one that was never interrupted, repeated reports included."""
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
    """A dump holds the newest 200 steps at most; one of another schema is refused."""
    job = Job("job")
    feed(job, SimulatedJob(world_size=1).reports(range(230), batch=10))
    assert len(job.skew(600)["steps"]) == 230

    assert len(Job.load(job.dump()).skew(600)["steps"]) == 200
    with pytest.raises(ValueError, match="schema"):
        Job.load(msgspec.msgpack.encode({"schema": 99}))


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
    """Every view is plain JSON, of an empty job too, and silence alone makes a job stale."""
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


def test_events_tell_of_ranks_once_they_are_all_there() -> None:
    """Pages get the list of ranks once it is whole, not anew for each that joins."""
    events = feed(Job("job"), SimulatedJob(world_size=3).reports([0]))

    assert kinds_of(events) == ["step", "model", "ranks"]
    assert [row["node"] for row in events[-1].data["ranks"]] == ["node0", "node0", "node1"]
    assert events[0].data["step"] == 0
    assert len(b64decode(events[0].data["slowdown_permille"])) == 2 * 3


def test_a_published_policy_is_stamped() -> None:
    """Version, parent and time of a policy are the job's to give, also when published by hand."""
    job = Job("job")
    wanted = msgspec.structs.replace(HOME_POLICY, version=77, pooling=True, reason="by hand")

    (event,) = job.publish(wanted, NOW_S)

    assert (event.kind, event.data["version"], event.data["parent"]) == ("policy", 1, 0)
    assert (job.policy.version, job.policy.created_s, job.policy.reason) == (1, NOW_S, "by hand")
