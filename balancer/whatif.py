"""What a recorded job's steps would take if some of its operations had taken their typical time.

Typical is the mean over ranks, stages and steps for what computes, and the median for what
exchanges, of operations of the same kind. Waiting counts for nothing: it follows.

Shapes: N operations, S steps, K cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libra.balancer.critical_path import CriticalPath
from libra.balancer.trace import COMPUTE, Float64, Int64, Trace
from libra.balancer.trace_graph import Graph, exchanging, make_graph

# Durations held at a time, over all cases.
_CELLS = 1 << 21
# Ranks that are computed one by one; each costs as much as the whole job does.
_MOST_RANKS = 128
_PIPELINE = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """What part of the operations does to the mean step, as a multiple of the ideal one.

    Attributes:
        kept: with these as recorded, and all others ideal.
        removed: with these ideal, and all others as recorded.
    """

    kept: float
    removed: float


@dataclass(frozen=True, kw_only=True, eq=False)
class WhatIf:
    """Seconds of each step as recorded and in the ideal [S], and what each part does to them.

    Of very many ranks only those that computed longest are in ``ranks``.
    """

    actual_s: Float64
    ideal_s: Float64
    stages: dict[int, Slowdown]
    ranks: dict[int, Slowdown]
    optypes: dict[str, Slowdown]

    @property
    def slowdown(self) -> float:
        """How many times the ideal a mean step takes."""
        return float(self.actual_s.mean() / self.ideal_s.mean())


class Replay:
    """A trace that can be computed with other durations.

    Raises:
        ValueError: in every step operations wait for each other in a circle.

    Attributes:
        trace: the steps that can be computed.
        graph: what waits for what in them.
        circular: numbers of the steps that cannot.
    """

    def __init__(self, trace: Trace) -> None:
        graph = make_graph(trace)
        path = CriticalPath(graph, trace.step)
        self.circular = tuple(int(step) for step in trace.steps[path.circular])
        if path.circular.all():
            raise ValueError(
                "in every step operations wait for each other in a circle; start_ts of a step's "
                "ranks must come from one clock"
            )
        if path.circular.any():
            trace = trace.only(~path.circular)
            graph = make_graph(trace)
            path = CriticalPath(graph, trace.step)
        self.trace: Trace = trace
        self.graph: Graph = graph
        self._path = path

    def seconds(self, work_s: Float64) -> Float64:
        """Return how long each step takes [S] for durations [N]."""
        result: Float64 = self._path.seconds(work_s[:, None])[:, 0]
        return result

    def means(
        self, base_s: Float64, other_s: Float64, label: Int64, values: Sequence[int]
    ) -> list[float]:
        """Return the mean step for each value of a label [N]: operations that bear it take
        their other duration [N], all others their base [N].
        """
        width = max(1, _CELLS // len(base_s))
        means: list[float] = []
        for begin in range(0, len(values), width):
            changed = label[:, None] == np.array(values[begin : begin + width])
            work = np.where(changed, other_s[:, None], base_s[:, None])
            means.extend(self._path.seconds(work).mean(axis=0).tolist())
        return means


def what_if(replay: Replay) -> WhatIf:
    """Return what each stage, rank and kind of operation does to the steps."""
    trace, work = replay.trace, replay.graph.work_s
    ideal_work = ideal(replay)
    ideal_s = replay.seconds(ideal_work)
    labels = [_PIPELINE.get(name, name) for name in trace.optypes]
    names = sorted(set(labels))
    kinds = np.array([names.index(label) for label in labels])[trace.optype]
    stages = np.unique(trace.stages)

    def part(own: Int64, values: Sequence[int]) -> list[Slowdown]:
        mean = float(ideal_s.mean())
        kept = replay.means(ideal_work, work, own, values)
        removed = replay.means(work, ideal_work, own, values)
        return [
            Slowdown(kept=a / mean, removed=b / mean) for a, b in zip(kept, removed, strict=True)
        ]

    by_stage = part(trace.stages[trace.worker], stages.tolist())
    busiest = _busiest(trace, work)
    by_rank = part(trace.worker, busiest)
    by_kind = part(kinds, range(len(names)))
    return WhatIf(
        actual_s=replay.seconds(work),
        ideal_s=ideal_s,
        stages=dict(zip(stages.tolist(), by_stage, strict=True)),
        ranks=dict(zip(trace.ranks[busiest].tolist(), by_rank, strict=True)),
        optypes=dict(zip(names, by_kind, strict=True)),
    )


def _busiest(trace: Trace, work_s: Float64) -> list[int]:
    """Return the ranks that computed longest, at most as many as can be computed one by one."""
    seconds = np.where(trace.is_any(*COMPUTE), work_s, 0.0)
    totals = np.bincount(trace.worker, weights=seconds, minlength=len(trace.ranks))
    busiest: list[int] = np.sort(np.argsort(-totals, kind="stable")[:_MOST_RANKS]).tolist()
    return busiest


def ideal(replay: Replay) -> Float64:
    """Return the typical duration of each operation's kind [N]."""
    trace, graph = replay.trace, replay.graph
    moves = exchanging(trace)
    result = np.zeros(len(trace.step))
    for kind in range(len(trace.optypes)):
        rows = trace.optype == kind
        known = graph.work_s[rows & graph.used]
        if len(known):
            typical = np.median if moves[rows][0] else np.mean
            result[rows] = typical(known)
    return result
