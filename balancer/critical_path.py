"""How long steps take when every operation begins as soon as what it waits for is over.

Shapes: N operations, S steps, K cases computed side by side.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from libra.balancer.trace import Float64, Int64
from libra.balancer.trace_graph import Graph


@dataclass(frozen=True, kw_only=True, eq=False)
class _Level:
    """Meetings that wait for earlier levels only.

    Attributes:
        sources: positions of the operations waited for, by meeting.
        bounds: where each meeting's sources begin; empty where nothing is waited for.
        begin: position of the level's first operation.
        end: position after its last.
        meeting: each operation's meeting, counted from the level's first.
    """

    sources: Int64
    bounds: Int64
    begin: int
    end: int
    meeting: Int64


class CriticalPath:
    """A graph made ready to be computed for many durations.

    Args:
        graph: what waits for what.
        step: index of each operation's step [N].

    ``circular`` tells the steps [S] whose operations wait for each other in a circle.
    """

    def __init__(self, graph: Graph, step: Int64) -> None:
        used, steps = graph.used, int(step.max()) + 1
        edges = graph.edges[used[graph.edges].all(axis=1)]
        level = _levels(graph.meeting, edges)
        own_level = level[graph.meeting]
        self.circular = np.zeros(steps, dtype=bool)
        self.circular[step[used & (own_level < 0)]] = True
        rows = np.flatnonzero(used & (own_level >= 0))
        self._order = rows[np.lexsort((graph.meeting[rows], own_level[rows]))]
        position = np.full(len(step), -1)
        position[self._order] = np.arange(len(self._order))
        edges = edges[(position[edges] >= 0).all(axis=1)]
        self._plan = _plan(own_level, graph.meeting, edges, self._order, position)
        self._by_step = np.argsort(step[self._order], kind="stable")
        ordered = step[self._order][self._by_step]
        self._bounds = np.searchsorted(ordered, np.arange(steps))
        self._there = np.bincount(ordered, minlength=steps) > 0

    def seconds(self, work_s: Float64) -> Float64:
        """Return how long each step takes [S, K] for durations [N, K]."""
        work = work_s[self._order]
        end = np.empty_like(work)
        for level in self._plan:
            own = slice(level.begin, level.end)
            if len(level.sources):
                begun = np.maximum.reduceat(end[level.sources], level.bounds)
                end[own] = begun[level.meeting] + work[own]
            else:
                end[own] = work[own]
        result = np.zeros((len(self._bounds), work.shape[1]))
        result[self._there] = np.maximum.reduceat(end[self._by_step], self._bounds[self._there])
        return result


def _levels(meeting: Int64, edges: Int64) -> Int64:
    """Return how many meetings each one has at most before it, -1 in and after a circle [M]."""
    count = int(meeting.max()) + 1
    source, target = meeting[edges[:, 0]], meeting[edges[:, 1]]
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    bounds = np.searchsorted(source, np.arange(count + 1))
    waits = np.bincount(target, minlength=count)
    level = np.full(count, -1)
    ready, depth = np.flatnonzero(waits == 0), 0
    while len(ready):
        level[ready] = depth
        lengths = bounds[ready + 1] - bounds[ready]
        skip = np.repeat(bounds[ready] - (np.cumsum(lengths) - lengths), lengths)
        reached, times = np.unique(target[skip + np.arange(len(skip))], return_counts=True)
        waits[reached] -= times
        ready, depth = reached[waits[reached] == 0], depth + 1
    return level


def _plan(
    own_level: Int64, meeting: Int64, edges: Int64, order: Int64, position: Int64
) -> list[_Level]:
    """Return what to compute, level by level."""
    levels = own_level[order]
    depth = int(levels.max()) + 1 if len(levels) else 0
    starts = np.searchsorted(levels, np.arange(depth + 1))
    # Meetings in order of level; their operations stand together in ``order``.
    fresh = np.concatenate([[True], np.diff(meeting[order]) != 0])
    serial = np.cumsum(fresh) - 1
    own = np.full(int(meeting.max()) + 1, -1)
    own[meeting[order]] = serial
    waiting = own[meeting[edges[:, 1]]]
    by_target = np.argsort(waiting, kind="stable")
    waiting, sources = waiting[by_target], position[edges[by_target, 0]]
    plan = []
    for begin, end in pairwise(starts.tolist()):
        first, last = int(serial[begin]), int(serial[end - 1]) + 1
        low, high = np.searchsorted(waiting, [first, last])
        bounds = np.searchsorted(waiting[low:high], np.arange(first, last))
        plan.append(
            _Level(
                sources=sources[low:high],
                bounds=bounds,
                begin=int(begin),
                end=int(end),
                meeting=serial[begin:end] - first,
            )
        )
    return plan
