"""What waits for other ranks takes the memory that it came in, whatever a job says it is."""

import tracemalloc
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from libra.balancer import steps as module
from libra.balancer.batch import batch_of, batch_of_one
from libra.balancer.job import Job
from libra.balancer.steps import StepLog
from libra.balancer.wire import Report, StepTotals
from tests.batches import nodes
from tests.jobs import NOW_S
from tests.simulated_job import SimulatedJob


@given(nodes(), nodes())
@settings(deadline=None, max_examples=60)
def test_a_step_is_the_sum_of_what_came(first: list[Report], again: list[Report]) -> None:
    """In whatever parts ranks come, twice or not, a step has each rank's first word in its row."""
    ranks = sorted({report.rank for report in (*first, *again)})
    log = StepLog()
    log.begin_attempt(0, len(ranks) + 1)
    told: dict[tuple[int, int], StepTotals] = {}
    for reports in (first, again):
        batch = batch_of(reports)
        kinds = log.number_kinds(batch.kinds)
        for columns in batch.steps:
            log.add([batch.ranks[row] for row in columns.rows], columns, kinds)
        for report in reports:
            for totals in report.steps:
                told.setdefault((totals.step, report.rank), totals)
    for step, pending in log.pending.items():
        gathered = pending.gather(len(log.kinds))
        for row, rank in enumerate(gathered.ranks.tolist()):
            own = told.pop((step, rank))
            assert gathered.seconds[row] == own.seconds
            assert tuple(gathered.home[row]) == own.home_features
            assert gathered.versions[row] == own.policy_version
            pairs = own.home_pairs
            assert gathered.pairs[row].tolist()[: len(pairs)] == pairs
            assert not gathered.pairs[row, len(pairs) :].any()
            spent = gathered.kernel_seconds[row].sum()
            np.testing.assert_allclose(spent, sum(k.seconds for k in own.kernels))
            work = np.sum([k.features for k in own.kernels], axis=0) if own.kernels else 0.0
            np.testing.assert_allclose(gathered.actual[row].sum(axis=0), work)
    assert not told


def test_a_tiny_report_of_a_huge_job_takes_little() -> None:
    """One report that claims 65,536 ranks and tells of 500 steps takes no gigabytes."""
    one = replace(SimulatedJob(world_size=65_536), uneven=False).report([0], 0, sequence=0)
    steps = [msgspec.structs.replace(one.steps[0], step=step) for step in range(500)]
    huge = msgspec.structs.replace(one, steps=steps)
    job = Job("job")

    tracemalloc.start()
    job.take(batch_of_one(huge), NOW_S)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100 << 20


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that one rank fills with figures are given up, oldest first, before memory runs out."""
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 100_000)
    job = Job("job")
    for step in range(100):
        report = SimulatedJob(world_size=4).report([step], 0, sequence=step)
        report.steps[0].home_pairs = [1.0] * 256
        job.take(batch_of_one(report), NOW_S)

    pending = job._state.log.pending
    assert sum(own.num_bytes for own in pending.values()) <= 100_000
    assert max(pending) == 99
    assert len(pending) > 10
