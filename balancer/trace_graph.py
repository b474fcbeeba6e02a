"""What each operation of a recorded step waits for, and which operations wait for each other.

Shapes: N operations, M meetings, E edges. Operations that exchange data meet: each may begin on
its own, and none gets on before all have begun. Every other operation is a meeting of its own.
"""

from dataclasses import dataclass

import numpy as np

from libra.balancer.rank_order import TRANSFERS, rank_edges
from libra.balancer.stage_links import stage_links
from libra.balancer.trace import COMPUTE, Bool, Float64, Int64, Trace, ordinals

_EMBEDDING = "embedding-grads-all-reduce"
_CLIP = "optimizer-clip-main-grad"
# Within a tensor- or context-parallel group, of which one rank is recorded.
_LAYERNORM = "layernorm-grads-all-reduce"
_COLLECTIVE_WORDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """The order of a trace.

    Attributes:
        used: operations that take part [N]; others carry nothing.
        meeting: the meeting that each operation belongs to [N].
        edges: (operation waited for, operation waiting) [E, 2].
        exchanges: operations that move data [N].
        work_s: seconds of each operation without waiting for others of its meeting [N].
        moving_s: of those, seconds in which data moved; 0 for what moves none [N].
    """

    used: Bool
    meeting: Int64
    edges: Int64
    exchanges: Bool
    work_s: Float64
    moving_s: Float64


def make_graph(trace: Trace) -> Graph:
    """Return the order in which a trace's operations wait for each other."""
    links = stage_links(trace)
    edges = np.concatenate([rank_edges(trace), links.edges])
    meeting = _meetings(trace, links.pairs)
    exchanges = exchanging(trace)
    count = int(meeting.max()) + 1
    latest, earliest_end = np.full(count, -np.inf), np.full(count, np.inf)
    np.maximum.at(latest, meeting, trace.start_s)
    np.minimum.at(earliest_end, meeting, trace.end_s)
    alone = np.bincount(meeting, minlength=count)[meeting] == 1
    half = alone & trace.is_any(*TRANSFERS)
    begun = np.where(half, _begun(trace, edges), latest[meeting])
    work = np.maximum(trace.end_s - begun, 0.0)
    work = np.where(alone & ~half, trace.duration_s, work)
    # Where transfers are posted together, some end late because another one waits: data of a
    # meeting had moved when the first of its operations ended.
    moving = np.clip(earliest_end[meeting] - begun, 0.0, work)
    return Graph(
        used=~links.idle,
        meeting=meeting,
        edges=edges,
        exchanges=exchanges,
        work_s=work,
        moving_s=np.where(exchanges, moving, 0.0),
    )


def _begun(trace: Trace, edges: Int64) -> Float64:
    """Return when each operation could get on, by what it waits for [N].

    It stands for the start of the other half of a transfer, where that was not recorded.
    """
    begun = trace.start_s.copy()
    np.maximum.at(begun, edges[:, 1], trace.end_s[edges[:, 0]])
    return begun


def exchanging(trace: Trace) -> Bool:
    """Tell which operations move data between ranks [N]."""
    kinds = [
        name in (*TRANSFERS, _CLIP) or any(word in name for word in _COLLECTIVE_WORDS)
        for name in trace.optypes
    ]
    return np.array(kinds, dtype=bool)[trace.optype]


def _meetings(trace: Trace, pairs: Int64) -> Int64:
    """Return the meeting that each operation belongs to [N]."""
    segment = trace.step * len(trace.ranks) + trace.worker
    turn = ordinals(segment * len(trace.optypes) + trace.optype)
    columns = trace.dp_ranks * (int(trace.lanes.max()) + 1) + trace.lanes
    everyone = trace.is_any(_CLIP)
    pipeline = trace.is_any(_EMBEDDING)
    stage = exchanging(trace) & ~everyone & ~pipeline
    stage &= ~trace.is_any(*TRANSFERS, *COMPUTE, _LAYERNORM)
    place = np.select(
        [everyone, pipeline, stage], [0, columns[trace.worker], trace.stages[trace.worker]]
    )
    rows = np.arange(len(turn))
    key = np.stack([trace.step, trace.optype, turn, place], axis=1)
    own = everyone | pipeline | stage
    meeting = rows.copy()
    _, first, group = np.unique(key[own], axis=0, return_index=True, return_inverse=True)
    meeting[own] = rows[own][first][group.reshape(-1)]
    meeting[pairs[:, 1]] = meeting[pairs[:, 0]]
    return np.unique(meeting, return_inverse=True)[1]
