"""Batches that are folded in together leave a job as if they had come one after the other."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.batch import Batch, BatchOutcome, batch_of
from libra.balancer.job import Job
from libra.balancer.merging import can_merge, merge
from libra.balancer.wire import Report, ReportError
from tests.batches import comparable, nodes
from tests.simulated_job import SimulatedJob

RANKS = 8
NOW_S = 1000.0


def node_batches(steps: range, ranks_a_node: int = 2) -> list[list[Batch]]:
    """Return, step by step, the batches of all nodes of an honest job."""
    job = SimulatedJob(world_size=RANKS, seed=3)
    rounds = []
    for step in steps:
        reports = sorted(job.reports(range(step, step + 1)), key=lambda report: report.rank)
        rounds.append(
            [
                batch_of(
                    [
                        msgspec.structs.replace(report, node=f"node-{begin}", sent_s=NOW_S - begin)
                        for report in reports[begin : begin + ranks_a_node]
                    ]
                )
                for begin in range(0, RANKS, ranks_a_node)
            ]
        )
    return rounds


def one_by_one(job: Job, batches: Sequence[Batch]) -> list[BatchOutcome | ReportError]:
    outcomes: list[BatchOutcome | ReportError] = []
    for batch in batches:
        try:
            outcomes.append(job.take(batch, NOW_S))
        except ReportError as error:
            outcomes.append(error)
    return outcomes


def told(outcomes: Sequence[BatchOutcome | ReportError]) -> list[object]:
    """Return outcomes without their events, which are the first's where batches are merged."""
    return [
        str(one)
        if isinstance(one, ReportError)
        else (one.accepted, one.duplicates, one.late, one.refused)
        for one in outcomes
    ]


def events(outcomes: Sequence[BatchOutcome | ReportError]) -> list[str]:
    return [event.kind for one in outcomes if isinstance(one, BatchOutcome) for event in one.events]


def assert_alike(one: Job, other: Job) -> None:
    """Everything that is shown of two jobs agrees; sums to the rounding of another order."""
    for view in ("skew", "ranks", "exchange"):
        first, second = (getattr(job, view)() for job in (one, other))
        np.testing.assert_equal(first.keys(), second.keys())
    assert one.summary(NOW_S)["reports"] == other.summary(NOW_S)["reports"]
    assert one.clock_offsets_s == other.clock_offsets_s
    assert [rank["node"] for rank in one.ranks()["ranks"]] == [
        rank["node"] for rank in other.ranks()["ranks"]
    ]
    fits = [[fit["coefficients"] for fit in job.model()["kinds"]] for job in (one, other)]
    np.testing.assert_allclose(fits[0], fits[1], rtol=1e-9)
    assert one.skew()["steps"] == other.skew()["steps"]
    np.testing.assert_allclose(one.skew()["skew"], other.skew()["skew"], rtol=1e-12)


@given(st.lists(nodes(), min_size=1, max_size=4))
def test_nothing_is_lost_or_mixed_up(groups: list[list[Report]]) -> None:
    """A merged batch holds every row's report, in order, whatever the reports tell."""
    rank = 0
    for number, group in enumerate(groups):
        for report in group:
            report.rank, report.node, rank = rank, f"node-{number}", rank + 1
    batches = [batch_of(group) for group in groups]

    assert can_merge(batches)
    merged = merge(batches)
    found = merged.reports()
    wanted = [report for batch in batches for report in batch.reports()]
    assert [merged.node_of(row) for row in range(len(merged))] == [r.node for r in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        ours.node, ours.sent_s = theirs.node, theirs.sent_s
        assert comparable(ours) == comparable(theirs)


def test_healthy_batches_together_are_the_same_one_by_one() -> None:
    """The same steps, fits, places and clocks, and the same is told of each batch."""
    together, apart = Job("job"), Job("job")
    for batches in node_batches(range(12)):
        first, second = together.take_all(batches, NOW_S), one_by_one(apart, batches)
        assert told(first) == told(second)
        assert sorted(events(first)) == sorted(events(second))

    assert together.summary(NOW_S)["step"] == 11
    assert_alike(together, apart)


@pytest.mark.parametrize("fault", ["duplicate", "bad row", "late", "other launch", "wrong job"])
def test_what_is_wrong_with_one_batch_is_told_of_it_alone(fault: str) -> None:
    """A fault among many batches changes nothing of what becomes of the others."""
    together, apart = Job("job"), Job("job")
    before: Batch | None = None
    for batches in node_batches(range(4)):
        bad = batches[1].reports()
        if fault == "bad row":
            bad[0].steps[0].seconds = -1.0
        attempt = {"late": -1, "other launch": 1}.get(fault, 0)
        for report in bad:
            report.attempt += 5 + attempt
            report.job = "another" if fault == "wrong job" else report.job
        for batch in (batches[0], *batches[2:]):
            batch.attempt += 5
        mixed = [batches[0], batch_of(bad), *batches[2:]]
        if fault == "duplicate" and before is not None:
            mixed[1] = before
        before = mixed[1]
        first, second = together.take_all(mixed, NOW_S), one_by_one(apart, mixed)
        assert told(first) == told(second)

    counts = ("reports", "rejected", "duplicates", "late")
    assert [together.summary(NOW_S)[c] for c in counts] == [apart.summary(NOW_S)[c] for c in counts]


def test_different_launches_and_ranks_that_come_twice_are_not_merged() -> None:
    """Only what one batch could hold is made one."""
    first, second = node_batches(range(1))[0][:2]

    assert can_merge([first, second])
    assert not can_merge([first, first])
    assert not can_merge([first, msgspec.structs.replace(second, attempt=1)])
    assert not can_merge([first, msgspec.structs.replace(second, world_size=9)])
