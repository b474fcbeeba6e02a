"""Keep a node's batch small: no more raw points of a kind than one rank's report may have."""

import random
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from libra.agent.samples import MAX_POINTS
from libra.attention.observer import KernelKind
from libra.balancer.wire import Report


def thin_points(reports: Sequence[Report], rng: random.Random) -> list[Report]:
    """Return the reports with ``MAX_POINTS`` raw points of each kind in all, drawn evenly.

    Points are for the eye; what is fitted are moment sums, and these stay whole.
    """
    places: dict[KernelKind, list[tuple[int, int, int]]] = defaultdict(list)
    for row, report in enumerate(reports):
        for number, moments in enumerate(report.moments):
            places[moments.kind] += [(row, number, point) for point in range(len(moments.points))]
    if all(len(found) <= MAX_POINTS for found in places.values()):
        return list(reports)
    kept: dict[tuple[int, int], list[int]] = defaultdict(list)
    for found in places.values():
        for row, number, point in rng.sample(found, min(MAX_POINTS, len(found))):
            kept[row, number].append(point)
    return [_thinned(report, row, kept) for row, report in enumerate(reports)]


def _thinned(report: Report, row: int, kept: dict[tuple[int, int], list[int]]) -> Report:
    moments = [
        msgspec.structs.replace(own, points=[own.points[point] for point in kept[row, number]])
        for number, own in enumerate(report.moments)
    ]
    return msgspec.structs.replace(report, moments=moments)
