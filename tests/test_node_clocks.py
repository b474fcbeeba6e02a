"""Nodes' clocks are watched, and nothing is decided by them."""

import msgspec
import pytest

from libra.balancer.batch import batch_of
from libra.balancer.job import Job
from libra.balancer.node_clocks import WINDOW_S, NodeClocks
from tests.jobs import NOW_S, feed, views
from tests.simulated_job import SimulatedJob


def watch(clocks: NodeClocks, offset_s: float, *, begin_s: float, seconds: int) -> None:
    """Let a node report once a second for a while, each report some time on its way."""
    for second in range(seconds):
        sent_s = begin_s + second
        way_s = 0.002 + (0.3 if second % 7 else 0.0)
        clocks.note("n", sent_s=sent_s - offset_s, arrived_s=sent_s + way_s, max_nodes=8)


def test_the_quickest_report_tells_the_offset() -> None:
    """However long most reports take, the offset is known to what the quickest took."""
    clocks = NodeClocks()
    watch(clocks, 5.0, begin_s=NOW_S, seconds=180)

    assert clocks.range_s is not None
    assert list(clocks.range_s) == pytest.approx([5.002] * 2, abs=1e-3)
    assert clocks.jumps == 0


@pytest.mark.parametrize("to_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_is_counted_and_followed(to_s: float) -> None:
    """Whichever way a clock jumps, it is counted once and its new offset known in two windows."""
    clocks = NodeClocks()
    watch(clocks, 0.0, begin_s=NOW_S, seconds=200)
    watch(clocks, to_s, begin_s=NOW_S + 200, seconds=int(4 * WINDOW_S))

    assert clocks.jumps == 1
    assert clocks.range_s is not None
    assert list(clocks.range_s) == pytest.approx([to_s + 0.002] * 2, abs=1e-3)


def test_nodes_are_bounded() -> None:
    """Ever new names of nodes cost no more memory than a job has ranks."""
    clocks = NodeClocks()
    for number in range(100):
        clocks.note(f"n{number}", sent_s=0.0, arrived_s=1.0, max_nodes=8)

    assert len(clocks.nodes) == 8


def test_no_clock_decides_anything() -> None:
    """Views of a job are the same whatever time its nodes say it is."""
    told, silent = Job("job", mode="adapt"), Job("job", mode="adapt")
    for step in range(16):
        reports = SimulatedJob().reports([step])
        feed(silent, reports)
        wild = [msgspec.structs.replace(r, sent_s=1e9 * (step % 3)) for r in reports]
        feed(told, wild)

    assert views(told) == views(silent)
    assert silent.clock_offsets_s is None
    offsets = told.clock_offsets_s
    assert offsets is not None
    assert offsets[0] <= offsets[1]
    batch = batch_of(SimulatedJob().reports([16]))
    assert told.take(batch, NOW_S).accepted == 4
