"""What the store is given of steps: all of them in time, ever leaner, and no more than is kept."""

import pytest

from libra.balancer import step_rows, steps
from libra.balancer.job import Job
from libra.balancer.snapshot import decode_step, decode_steps
from libra.balancer.step_rows import StepRows
from libra.balancer.steps import EXACT_STEPS, RECENT_STEPS
from libra.balancer.storage import PutStep
from tests.jobs import feed
from tests.simulated_job import SimulatedJob

RANKS = 2


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> int:
    """A ring of few more steps than are kept to the bit."""
    monkeypatch.setattr(steps, "RING_STEPS", EXACT_STEPS + 32)
    return EXACT_STEPS + 32


def stepped(job: Job, rows: StepRows, number: int, begin: int = 0) -> None:
    ranks = SimulatedJob(world_size=RANKS)
    for step in range(begin, begin + number):
        feed(job, ranks.reports([step]))
        rows.collect()


def newest(written: list[PutStep]) -> dict[int, bytes]:
    """Return the store's rows by step."""
    return {row.step: row.body for row in written}


def write_all(rows: StepRows) -> list[PutStep]:
    written = []
    while taken := rows.take(0.0):
        rows.written()
        written += taken
    return written


def test_a_row_is_written_again_as_its_step_becomes_leaner(ring: int) -> None:
    """The newest steps are whole in the store, older ones lose their features, then their bits."""
    job = Job("job")
    rows = StepRows(job)
    written = []
    for begin in range(0, ring, 8):
        stepped(job, rows, 8, begin)
        written += write_all(rows)
    store = newest(written)
    details = [decode_step(store[step]).detail for step in range(ring)]

    assert details == [record.detail for record in job.state.log.records]
    assert details[-RECENT_STEPS:] == [2] * RECENT_STEPS
    assert details[:-EXACT_STEPS] == [0] * (ring - EXACT_STEPS)
    sizes = [len(store[step]) for step in (0, ring - RECENT_STEPS - 1, ring - 1)]
    assert sizes == sorted(set(sizes))
    assert len(rows.held) <= EXACT_STEPS


def test_a_disk_that_fails_for_long_holds_no_more_steps_than_the_job(ring: int) -> None:
    """What the ring has dropped is not held for the disk either; the rest is written after it."""
    job = Job("job")
    rows = StepRows(job)
    for begin in range(0, 2 * ring, 16):
        stepped(job, rows, 16, begin)
        rows.take(0.0)
        rows.put_back()
        kept = set(map(id, job.state.log.records))
        held = rows.held
        assert len(held) <= EXACT_STEPS or kept.issuperset(map(id, held))

    written = write_all(rows)
    assert sorted(newest(written)) == [r.step for r in job.state.log.records]
    assert len(rows) == 0


def test_a_write_takes_a_part_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps wait, a write is short, and it begins with the oldest."""
    job = Job("job")
    rows = StepRows(job)
    stepped(job, rows, 12)
    monkeypatch.setattr(step_rows, "_WRITE_BYTES", 3 * job.state.log.records[-1].num_bytes)
    first = rows.take(0.0)
    rows.written()

    assert [row.step for row in first] == [0, 1, 2]
    assert [row.step for row in write_all(rows)] == list(range(3, 12))


def test_steps_that_an_attempt_does_again_are_let_go(ring: int) -> None:
    """A job that goes back over and over holds no steps that nobody keeps."""
    job = Job("job")
    rows = StepRows(job)
    for attempt in range(5):
        feed(job, SimulatedJob(world_size=RANKS, attempt=attempt).reports(range(40)))
        rows.collect()
        write_all(rows)

    kept = set(map(id, job.state.log.records))
    assert kept.issuperset(map(id, rows.held))


def test_a_restored_log_keeps_as_much_as_the_one_before(ring: int) -> None:
    """Rows make a log with the same details, to the bit where that counts."""
    job = Job("job")
    rows = StepRows(job)
    stepped(job, rows, ring + 8)
    store = newest(write_all(rows))
    restored = decode_steps([store[step] for step in sorted(store)], job.attempt)
    records = job.state.log.records

    assert [r.step for r in restored] == [r.step for r in records]
    assert [r.detail for r in restored] == [r.detail for r in records]
    for old, new in zip(records, restored, strict=True):
        assert new.kernel_seconds.dtype == old.kernel_seconds.dtype
        assert new.kernel_seconds.tolist() == old.kernel_seconds.tolist()
        assert (new.skew, new.predicted_skew) == (old.skew, old.predicted_skew)
