"""Steps are put together whatever the order, and what waits is bounded."""

import msgspec
import numpy as np
import pytest

from libra.balancer.batch import batch_of_one
from libra.balancer.step_record import StepRecord
from libra.balancer.steps import (
    CLOSE_AFTER_STEPS,
    MAX_INCOMPLETE_STEPS,
    MAX_PENDING_STEPS,
    RECENT_STEPS,
    RING_STEPS,
    StepLog,
)
from libra.balancer.wire import KernelTotals, StepTotals
from tests.running import make_report
from tests.simulated_job import BACKWARD, FORWARD


def totals(step: int, seconds: float = 1.0, *, version: int = 0) -> StepTotals:
    """Return a step of one rank that spent ``seconds`` in each direction."""
    features = (1.0, 10.0 * seconds, 10.0 * seconds, 100.0 * seconds, 1.0, 0.0)
    return StepTotals(
        step=step,
        policy_version=version,
        seconds=4 * seconds,
        kernels=[
            KernelTotals(kind=kind, features=features, seconds=seconds)
            for kind in (FORWARD, BACKWARD)
        ],
        home_features=features,
        sent_bytes=7,
        wait_seconds=1.0,
    )


def add(log: StepLog, rank: int, own: StepTotals) -> StepRecord | None:
    """Take in one rank's step; return the record if this makes it whole."""
    report = make_report("job", rank=rank, world_size=log.world_size, steps=[own])
    batch = batch_of_one(report)
    whole = log.add([rank], batch.steps[0], log.number_kinds(batch.kinds))
    return log.put_together(own.step) if whole else None


def started(world_size: int = 2, attempt: int = 0) -> StepLog:
    log = StepLog()
    log.begin_attempt(attempt, world_size)
    return log


def finish(log: StepLog, step: int) -> StepRecord:
    """Complete a step and return its record."""
    record = [add(log, rank, totals(step)) for rank in range(log.world_size)][-1]
    assert record is not None
    return record


def test_a_step_is_complete_when_all_ranks_reported() -> None:
    """A step counts once all ranks, in any order, have reported it; then its figures are whole."""
    log = started(3)

    assert add(log, 2, totals(5, 3.0)) is None
    assert add(log, 0, totals(5, 1.0)) is None
    record = add(log, 1, totals(5, 2.0))

    assert record is not None
    assert record.step == 5
    assert record.kernel_seconds.tolist() == [2.0, 4.0, 6.0]
    assert record.skew == pytest.approx(1.5)
    assert record.slowdown.tolist() == pytest.approx([0.5, 1.0, 1.5])
    assert record.step_seconds == 8.0
    assert (record.sent_bytes, record.wait_seconds, record.wait_share) == (21, 1.0, 0.25)
    assert log.pending == {}


def test_prices_follow_actual_and_home_features() -> None:
    """Predicted skew is of the work that ranks did, home skew of what plain Ulysses would do."""
    log = started(2)
    add(log, 0, totals(0, 1.0))
    home = (1.0, 70.0, 70.0, 700.0, 1.0, 0.0)
    moved = msgspec.structs.replace(totals(0, 3.0), home_features=home)
    record = add(log, 1, moved)
    assert record is not None
    assert record.predicted_skew is None

    pairs, tokens = np.eye(6)[3], np.eye(6)[1]
    record.price(np.stack([pairs, 2 * pairs]), tokens)

    assert record.predicted_seconds is not None
    assert record.predicted_seconds.tolist() == [300.0, 900.0]
    assert record.predicted_skew == pytest.approx(1.5)
    assert record.home_skew == pytest.approx(1.75)


def test_steps_complete_out_of_order_and_stay_sorted() -> None:
    """Steps that complete out of order are listed by number."""
    log = started()
    for step in (3, 1, 2):
        finish(log, step)

    assert [record.step for record in log.records] == [1, 2, 3]
    assert log.newest == 3


def test_a_rank_that_repeats_a_step_changes_nothing() -> None:
    """A rank's first word on a step stands, before and after the step is complete."""
    log = started()
    add(log, 0, totals(1, 1.0))
    add(log, 0, totals(1, 9.0))
    record = add(log, 1, totals(1, 1.0))
    again = add(log, 0, totals(1, 5.0))

    assert record is not None
    assert record.kernel_seconds.tolist() == [2.0, 2.0]
    assert again is None
    assert log.pending == {}
    assert log.complete == 1


def test_policy_versions_that_differ_are_no_agreement() -> None:
    """A step whose ranks ran different policies is no step under the newer one."""
    log = started()
    add(log, 0, totals(1, version=2))
    record = add(log, 1, totals(1, version=1))

    assert record is not None
    assert (record.policy_version, record.agreed) == (1, False)


def test_one_rank_of_four_has_no_say_in_what_was_run() -> None:
    """Ranks agree before a step: a single one that tells of another policy is mistaken."""
    log = started(4)
    records = [add(log, rank, totals(1, version=9 if rank == 2 else 1)) for rank in range(4)]

    assert records[-1] is not None
    assert (records[-1].policy_version, records[-1].agreed) == (1, True)


def test_a_step_that_lags_is_closed_and_names_the_missing_ranks() -> None:
    """A step that lags too far behind is given up for good, and tells which ranks are missing."""
    log = started(3)
    add(log, 1, totals(0))
    for step in range(1, CLOSE_AFTER_STEPS):
        finish(log, step)
    assert log.incomplete == 0

    finish(log, CLOSE_AFTER_STEPS)

    assert log.incomplete == 1
    assert (log.given_up[0].step, log.given_up[0].missing) == (0, (0, 2))
    assert log.pending == {}
    assert add(log, 0, totals(0)) is None
    assert log.pending == {}


def test_all_is_bounded_however_ranks_report() -> None:
    """A rank whose step numbers run wild costs bounded memory, and honest steps go on."""
    log = started(2)
    for wild in range(MAX_PENDING_STEPS + 100):
        add(log, 1, totals(1_000_000 + wild))

    assert len(log.pending) == MAX_PENDING_STEPS
    assert len(log.given_up) == MAX_INCOMPLETE_STEPS
    assert log.incomplete == 100
    add(log, 0, totals(10))
    assert add(log, 1, totals(10)) is not None


def test_steps_from_before_an_outage_never_hold_up_new_ones() -> None:
    """More backlog than is kept pending, from a rank that others left alone, ages out."""
    log = started(2)
    finish(log, 0)
    for step in range(1, 3 * MAX_PENDING_STEPS):
        add(log, 0, totals(step))
    newest = 3 * MAX_PENDING_STEPS
    add(log, 0, totals(newest))

    assert add(log, 1, totals(newest)) is not None
    assert log.newest == newest


def test_the_ring_keeps_the_newest_and_only_recent_ones_keep_features() -> None:
    """However long a job runs, it keeps its newest steps, and features of the last few only."""
    log = started(1)
    for step in range(RING_STEPS + 10):
        finish(log, step)

    assert [log.records[0].step, log.records[-1].step] == [10, RING_STEPS + 9]
    assert len(log.records) == RING_STEPS
    assert sum(record.features is not None for record in log.records) == RECENT_STEPS
    assert len(log.recent()) == RECENT_STEPS
    assert log.complete == RING_STEPS + 10


def test_a_new_attempt_drops_pending_and_replaces_what_it_does_again() -> None:
    """A new attempt waits for no step of the old one and replaces those that it does again."""
    log = started()
    for step in range(10):
        finish(log, step)
    add(log, 0, totals(10))

    log.begin_attempt(1, 3)
    assert log.pending == {}
    assert log.recent() == []
    for step in (6, 7):
        finish(log, step)

    assert [r.step for r in log.records] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [r.step for r in log.current(100)] == [6, 7]
    assert {len(r.kernel_seconds) for r in log.current(100)} == {3}


def test_ranks_without_kernels_are_even() -> None:
    """A step without kernel or wall time is even and waits for nothing."""
    log = started(1)
    nothing = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    idle = StepTotals(step=0, policy_version=0, seconds=0.0, kernels=[], home_features=nothing)
    record = add(log, 0, idle)

    assert record is not None
    assert (record.skew, record.wait_share) == (1.0, 0.0)
