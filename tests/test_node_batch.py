"""A node's batch says what its ranks' reports say, and is taken row by row."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from libra.balancer.batch import Batch, batch_of, batch_of_one, decode_batch, encode_batch
from libra.balancer.batch_check import refused_rows
from libra.balancer.batch_columns import MAX_POINTS, point_table
from libra.balancer.job import Job
from libra.balancer.moments import Moments, are_plausible
from libra.balancer.report_check import check_report
from libra.balancer.wire import Report, ReportError, decode_report
from tests.batches import comparable, nodes
from tests.jobs import NOW_S, feed, views
from tests.simulated_job import SimulatedJob

DATA = Path(__file__).parent / "data"


def as_json(batch: Batch) -> bytes:
    """Return a batch as JSON with lists of numbers, as one would type it."""
    plain = msgspec.to_builtins(batch, builtin_types=(bytes,))
    return json.dumps(_with_lists(plain)).encode()


def _with_lists(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(own, key) for key, own in value.items()}
    if isinstance(value, list):
        return [_with_lists(own) for own in value]
    if isinstance(value, bytes):
        return np.frombuffer(value, dtype="<f4" if name == "points" else "<f8").tolist()
    return value


@given(nodes())
@settings(deadline=None, max_examples=60)
def test_a_batch_says_what_its_reports_say(reports: list[Report]) -> None:
    """Packed, encoded either way, decoded and unpacked, nothing is lost or changed."""
    batch = batch_of(reports)
    expected = [comparable(report) for report in reports]

    for decoded in (decode_batch(encode_batch(batch)), decode_batch(as_json(batch), as_json=True)):
        assert [comparable(report) for report in decoded.reports()] == expected
    some = list(range(0, len(reports), 2))
    kept = batch.only(some).reports()
    assert [comparable(report) for report in kept] == [expected[row] for row in some]


@given(nodes())
@settings(deadline=None, max_examples=60)
def test_a_look_at_arrays_finds_what_a_look_at_each_report_finds(reports: list[Report]) -> None:
    """Rows are refused for the fault, and at the place, that the row's own report has."""
    expected = []
    for row, report in enumerate(reports):
        try:
            check_report(report)
        except ReportError as error:
            expected.append((row, error.field, error.reason))

    refused = refused_rows(batch_of(reports))
    assert [(one.row, one.reason) for one in refused] == [(row, why) for row, _, why in expected]
    assert [one.field.split("[")[0] for one in refused] == [
        at.split("[")[0] for _, at, _ in expected
    ]


@pytest.mark.parametrize("spoilt", [0, 2, 3, 29])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0 - 1e-12, 2.0, 1e40])
def test_plausible_sums_are_those_without_fault(spoilt: int, factor: float) -> None:
    """Many rows are judged at once as each is alone, up to sums that miss the limit."""
    sums = np.array([m.sums for r in SimulatedJob().reports([0]) for m in r.moments])
    sums[3, spoilt] *= factor
    faults = [Moments(row.tolist()).fault() for row in sums]

    if are_plausible(sums):
        assert faults == [None] * len(sums)
    elif sums[:, 0].all():
        assert any(faults)


def test_a_node_is_taken_as_its_ranks_are() -> None:
    """A job knows the same of a node's batches as of its ranks' reports one by one."""
    simulated = SimulatedJob(world_size=8, slow=((2, 0.6),))
    one_by_one, together = Job("job", mode="adapt"), Job("job", mode="adapt")
    for step in range(24):
        reports = simulated.reports([step])
        feed(one_by_one, reports)
        for node in range(4):
            batch = batch_of(reports[2 * node : 2 * node + 2], max_points=1000)
            together.take(decode_batch(encode_batch(batch)) if step % 2 else batch, NOW_S)

    assert together.policy.version == one_by_one.policy.version >= 1
    shown, expected = views(together), views(one_by_one)
    assert shown["skew"]["steps"] == expected["skew"]["steps"]
    np.testing.assert_allclose(shown["skew"]["skew"], expected["skew"]["skew"], rtol=1e-6)
    for name in ("reports", "duplicates", "ranks_reporting", "cause", "cause_ranks"):
        assert shown["summary"][name] == expected["summary"][name]
    for mine, other in zip(shown["model"]["kinds"], expected["model"]["kinds"], strict=True):
        np.testing.assert_allclose(mine["coefficients"], other["coefficients"], rtol=1e-3)


def test_a_bad_row_is_refused_and_the_others_taken() -> None:
    """The fault of one rank costs its neighbours nothing, and is named by row and place."""
    reports = SimulatedJob().reports([0])
    reports[1].steps[0].seconds = math.nan
    reports[3].steps[0].kernels[1].seconds = -1.0
    job = Job("job")

    outcome = job.take(batch_of(reports), NOW_S)

    assert (outcome.accepted, outcome.duplicates, outcome.late) == (2, 0, 0)
    assert [(one.row, one.field, one.reason) for one in outcome.refused] == [
        (1, "$.steps[0].seconds", "not_finite"),
        (3, "$.steps[0].kernels[1].seconds", "negative"),
    ]
    assert job.summary(NOW_S)["rejected"] == 2
    again = job.take(batch_of(SimulatedJob().reports([0])), NOW_S)
    assert (again.accepted, again.duplicates) == (2, 2)
    assert job.skew()["steps"] == [0]


def test_a_batch_without_a_good_row_is_refused_whole() -> None:
    """It leaves no trace but the count of its rows."""
    reports = SimulatedJob().reports([0])
    for report in reports:
        report.steps[0].wait_seconds = 1e9
    job = Job("job")

    with pytest.raises(ReportError) as caught:
        job.take(batch_of(reports), NOW_S)

    assert (caught.value.field, caught.value.reason) == ("$.steps[0].wait_seconds", "absurd")
    assert (job.world_size, job.summary(NOW_S)["rejected"]) == (0, 4)


def test_the_same_report_by_relay_and_directly_counts_once() -> None:
    """A rank that lost its relay's answer sends again by itself; rows are told apart one by one."""
    reports = SimulatedJob().reports([0, 1])
    job = Job("job")
    job.take(batch_of(reports[:2]), NOW_S)
    feed(job, reports[1:3])
    outcome = job.take(batch_of([*reports[:4], *reports[4:]]), NOW_S)

    assert (outcome.accepted, outcome.duplicates) == (5, 3)
    summary = job.summary(NOW_S)
    assert (summary["reports"], summary["duplicates"]) == (8, 4)
    assert job.skew()["steps"] == [0, 1]


def test_a_batch_carries_few_points() -> None:
    """However many points ranks have, their batch has 32 of a kind, of all ranks; a body with
    more is refused.
    """
    reports = SimulatedJob(world_size=16).reports([0])
    batch = batch_of(reports)

    for columns in batch.moments:
        assert len(point_table(columns.points)) == len(columns.point_rows) == MAX_POINTS
        assert len(set(columns.point_rows)) == 16
    whole = batch_of(reports, max_points=1000)
    with pytest.raises(ReportError) as caught:
        decode_batch(encode_batch(whole))
    assert caught.value.field == "$.moments[0].points"
    assert len(point_table(batch_of_one(reports[0]).moments[0].points)) == 8


SPOILT: list[tuple[str, Any, str]] = [
    ("agents", [], "$.agents"),
    ("ranks", [0], "$.ranks"),
    ("sequences", [0, 1, 2, 3, 4], "$.sequences"),
    ("moments.0.rows", [1, 0, 2, 3], "$.moments[0].rows"),
    ("moments.0.rows", [0, 0, 2, 3], "$.moments[0].rows"),
    ("moments.0.rows", [0, 1, 2, 9], "$.moments[0].rows"),
    ("moments.0.rows", [], "$.moments[0].rows"),
    ("moments.0.sums", b"\0" * 8, "$.moments[0].sums"),
    ("moments.0.kind", 2, "$.moments[0].kind"),
    ("moments.0.points", b"\0" * 3, "$.moments[0].points"),
    ("moments.0.point_rows", [9], "$.moments[0].point_rows"),
    ("steps.0.seconds", b"\0" * 31, "$.steps[0].seconds"),
    ("steps.0.home_pairs", b"\0" * 33, "$.steps[0].home_pairs"),
    ("steps.0.home_pairs", b"\0" * (4 * 8 * 257), "$.steps[0].home_pairs"),
    ("steps.0.sent_bytes", [1], "$.steps[0].sent_bytes"),
    ("steps.0.kernels.1.rows", [0, 1, 2, 4], "$.steps[0].kernels[1].rows"),
    ("steps.0.kernels.1.features", b"", "$.steps[0].kernels[1].features"),
    ("steps.0.kernels.1.kind", 7, "$.steps[0].kernels[1].kind"),
    ("world_size", 1 << 21, "$.world_size"),
    ("schema", 1, "$.schema"),
    ("run", "a b", "$.run"),
]


@pytest.mark.parametrize(("path", "value", "field"), SPOILT)
def test_sizes_that_do_not_fit_are_refused_by_name(path: str, value: Any, field: str) -> None:
    """What is declared and what is there must match, or nothing of the batch is taken."""
    plain = msgspec.msgpack.decode(encode_batch(batch_of(SimulatedJob().reports([0]))))
    at = plain
    *way, last = path.split(".")
    for name in way:
        at = at[int(name)] if name.isdigit() else at[name]
    at[last] = value

    with pytest.raises(ReportError) as caught:
        decode_batch(msgspec.msgpack.encode(plain))

    assert (caught.value.field, caught.value.reason) == (field, "invalid")


@pytest.mark.parametrize("sent_s", [math.nan, math.inf, -1.0, 1e12])
def test_a_time_that_no_clock_shows_is_refused(sent_s: float) -> None:
    """Such a batch is refused as one of a broken clock."""
    batch = batch_of(SimulatedJob().reports([0]))
    batch.sent_s = sent_s

    with pytest.raises(ReportError) as caught:
        Job("job").take(batch, NOW_S)

    assert (caught.value.field, caught.value.reason) == ("$.sent_s", "clock")


@pytest.mark.parametrize("name", ["report.msgpack", "report.json", "batch.msgpack", "batch.json"])
def test_bodies_of_this_version_are_read_for_ever(name: str) -> None:
    """A body as agents of this version send it, a field that it does not know included."""
    body, as_json = (DATA / name).read_bytes(), name.endswith("json")
    job = Job("job")
    if name.startswith("batch"):
        batch = decode_batch(body, as_json=as_json)
    else:
        batch = batch_of_one(decode_report(body, as_json=as_json))

    assert job.take(batch, NOW_S).accepted == (2 if name.startswith("batch") else 1)
    assert batch.reports()[0].steps[0].home_pairs == [3.0, 4.0]
    assert (batch.run, batch.attempt, batch.sent_s) == ("slurm-17", 2, NOW_S)
    assert "a_newer_field" in str(body)


def test_a_rank_may_come_more_than_once_in_a_batch() -> None:
    """What a relay gathered of one rank over two intervals counts as both reports do."""
    reports = SimulatedJob(world_size=2).reports(range(4))
    one_by_one, together = Job("job"), Job("job")
    feed(one_by_one, reports)
    together.take(batch_of(reports, max_points=1000), NOW_S)

    calls = [
        [fit.ranks.calls.tolist() for fit in job._state.fits.fits] for job in (one_by_one, together)
    ]
    assert calls[0] == calls[1]
    assert together.skew()["steps"] == [0, 1, 2, 3]
