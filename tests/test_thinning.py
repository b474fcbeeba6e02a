"""A batch of many ranks has no more raw points than a report."""

import random

import msgspec

from libra.agent.samples import MAX_POINTS
from libra.agent.thinning import thin_points
from libra.balancer.wire import KernelMoments
from tests.running import FORWARD, make_report


def test_a_batch_has_as_many_points_as_one_report() -> None:
    """Points of a kind are drawn from all ranks alike, and nothing else changes."""
    point = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    reports = []
    for rank in range(8):
        own = make_report("job", rank=0)
        kernels = [
            KernelMoments(kind=FORWARD, sums=own.moments[0].sums, points=[point] * MAX_POINTS)
        ]
        reports.append(msgspec.structs.replace(own, moments=kernels, sequence=rank))
    thinned = thin_points(reports, random.Random(0))

    counts = [len(report.moments[0].points) for report in thinned]
    assert sum(counts) == MAX_POINTS
    assert min(counts) >= 1
    assert [r.moments[0].sums for r in thinned] == [r.moments[0].sums for r in reports]
    assert all(len(report.moments[0].points) == MAX_POINTS for report in reports)
    assert thin_points(thinned, random.Random(0)) == thinned
