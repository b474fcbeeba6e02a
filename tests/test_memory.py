"""A job's memory: it grows until its rings are full, and never after."""

import gc
import random
import tracemalloc

import pytest

from benchmarks.load_bodies import NODE_RANKS, Node, batch_body
from libra.balancer import steps
from libra.balancer.batch import decode_batch
from libra.balancer.job import Job
from libra.balancer.step_rows import StepRows

RANKS = 32
NOW_S = 1_700_000_000.0
# Of what Python's own caches hold now and then.
SLACK_BYTES = 64 << 10


def grown_bytes(*, full_at: int, end: int) -> int:
    """Return by how much a job that steps is larger at the end than with its rings full."""
    rng = random.Random(0)
    nodes = [
        Node(job="job", world_size=RANKS, first_rank=first, ranks=NODE_RANKS)
        for first in range(0, RANKS, NODE_RANKS)
    ]
    bodies = [batch_body(node, rng) for node in nodes]
    job = Job("job")
    rows = StepRows(job)
    sizes = []
    tracemalloc.start()
    try:
        for step in range(end):
            for body in bodies:
                job.take(decode_batch(body.fill(step, rng.uniform(0.9, 1.1))), NOW_S + step)
            rows.take(NOW_S)
            rows.written()
            if step + 1 in (full_at, end):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # Other things shrink meanwhile, and could hide a ring that grows.
    assert len(job.state.log.records) == steps.RING_STEPS
    return sizes[1] - sizes[0]


def test_a_job_stops_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rings of a tenth, 520 steps take no more memory than 220."""
    monkeypatch.setattr(steps, "RING_STEPS", steps.RING_STEPS // 10)
    monkeypatch.setattr(steps, "EXACT_STEPS", steps.EXACT_STEPS // 2)

    assert grown_bytes(full_at=220, end=520) < SLACK_BYTES


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_stops_growing_with_whole_rings() -> None:
    """3,000 steps take no more memory than 1,200."""
    assert grown_bytes(full_at=1200, end=3000) < SLACK_BYTES


def test_a_very_large_job_keeps_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for charts is bounded in bytes; what decisions read is kept whatever it is."""
    monkeypatch.setattr(steps, "RING_BYTES", 0)
    monkeypatch.setattr(steps, "EXACT_STEPS", 32)
    body = batch_body(Node(job="job", world_size=4, first_rank=0, ranks=4), random.Random(0))
    job = Job("job")
    for step in range(50):
        job.take(decode_batch(body.fill(step, 1.0)), NOW_S + step)

    assert len(job.state.log.records) == 32
    assert len(job.state.log.recent()) == steps.RECENT_STEPS
