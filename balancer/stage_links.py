"""What waits for what between pipeline stages: a micro-batch's way through the model's chunks.

The computing of a micro-batch in one chunk feeds that in the next. Recorded sends and receives
stand between the two; where they were not recorded the computing is linked directly.

Shapes: N operations, C computing operations of one direction, M transfers of one kind;
a segment is one rank in one step. Edges [E, 2] are (waited for, waiting).
"""

from dataclasses import dataclass

import numpy as np

from libra.balancer.rank_order import CLOCK_S, chain
from libra.balancer.trace import BACKWARD, FORWARD, Bool, Int64, Trace, ordinals

# Direction: its kind of computing, and which chunk comes next.
_DIRECTIONS = {"forward": (FORWARD, 1), "backward": (BACKWARD, -1)}


@dataclass(frozen=True, kw_only=True, eq=False)
class StageLinks:
    """Edges [E, 2], pairs of a send and its receive [P, 2], and transfers without data [N]."""

    edges: Int64
    pairs: Int64
    idle: Bool


def stage_links(trace: Trace) -> StageLinks:
    """Return how stages wait for each other."""
    segment = trace.step * len(trace.ranks) + trace.worker
    idle = np.zeros(len(segment), dtype=bool)
    edges, pairs = [np.empty((0, 2), np.int64)], [np.empty((0, 2), np.int64)]
    for direction, (compute, ahead) in _DIRECTIONS.items():
        computes = np.flatnonzero(trace.is_any(compute))
        if not len(computes):
            continue
        feeder = _feeders(trace, computes, ahead)
        fed = np.isin(computes, feeder)
        sent, sends = _matched(trace, segment, f"{direction}-send", computes, fed)
        received, receives = _matched(trace, segment, f"{direction}-recv", computes, feeder >= 0)
        for rows, own in ((sends, sent), (receives, received)):
            carrying = own[own >= 0]
            idle[np.setdiff1d(rows, carrying)] = True
            edges.append(chain(np.sort(carrying), segment))
        links, met = _linked(computes, feeder, sent, received)
        # A receive is posted after the computing before the one that it serves, and a send whose
        # receive was not recorded gets on then.
        edges.append(_posted(segment, computes, received))
        edges.append(_posted(segment, computes, _unmet(computes, feeder, sent, received)))
        edges.append(links)
        pairs.append(met)
    return StageLinks(edges=np.concatenate(edges), pairs=np.concatenate(pairs), idle=idle)


def _feeders(trace: Trace, computes: Int64, ahead: int) -> Int64:
    """Return what computed each one's micro-batch in the chunk before it, or -1 [C]."""
    columns = trace.dp_ranks * (int(trace.lanes.max()) + 1) + trace.lanes
    pipeline = (trace.step * (int(columns.max()) + 1) + columns[trace.worker])[computes]
    chunk = trace.global_chunk[computes]
    chunks = trace.mesh.pp_size * trace.mesh.vpp_size
    micro = _micro_batches(pipeline, chunk, trace.micro[computes], chunks)
    size = int(micro.max()) + 1
    keys = (pipeline * chunks + chunk) * size + micro
    before = chunk - ahead
    wanted = (pipeline * chunks + before) * size + micro
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[place]
    there = (before >= 0) & (before < chunks) & (keys[found] == wanted)
    return np.where(there, computes[found], -1)


def _micro_batches(pipeline: Int64, chunk: Int64, recorded: Int64, chunks: int) -> Int64:
    """Return each computing's micro-batch: as recorded if every chunk has it, else in order."""
    if (recorded >= 0).all():
        keys = pipeline * (int(recorded.max()) + 1) + recorded
        _, uses = np.unique(keys, return_counts=True)
        if (uses == chunks).all() and len(np.unique(keys * chunks + chunk)) == len(keys):
            return recorded
    return ordinals(pipeline * chunks + chunk)


def _matched(
    trace: Trace, segment: Int64, kind: str, computes: Int64, needs: Bool
) -> tuple[Int64, Int64]:
    """Return each computing's transfer of one kind, or -1 [C], and all transfers of it [M].

    Recorders note transfers for the computing that needs one, for every computing, or for every
    one but the first; and some at the ends of a step that carry nothing.
    """
    rows = np.flatnonzero(trace.is_any(kind))
    matched = np.full(len(computes), -1)
    own = segment[computes]
    useful = rows[_within(trace, segment, rows, computes, receives=kind.endswith("recv"))]
    size = int(segment.max()) + 1
    there = np.bincount(segment[useful], minlength=size)
    every, needed = np.bincount(own, minlength=size), np.bincount(own[needs], minlength=size)
    offset = np.searchsorted(segment[useful], own)
    place, place_needed = ordinals(own), np.zeros(len(own), np.int64)
    place_needed[needs] = ordinals(own[needs])
    skips_first = (there == every - 1)[own] & kind.endswith("recv")
    index = np.select(
        [(there == needed)[own], (there == every)[own], skips_first & (place > 0)],
        [place_needed, place, place - 1],
        default=-1,
    )
    usable = needs & (index >= 0)
    matched[usable] = useful[(offset + index)[usable]]
    return matched, rows


def _within(trace: Trace, segment: Int64, rows: Int64, computes: Int64, *, receives: bool) -> Bool:
    """Tell which transfers can serve any computing of their segment, by time [M]."""
    size = int(segment.max()) + 1
    if receives:
        last = np.full(size, -np.inf)
        np.maximum.at(last, segment[computes], trace.start_s[computes])
        return np.asarray(trace.start_s[rows] <= last[segment[rows]] + CLOCK_S)
    first = np.full(size, np.inf)
    np.minimum.at(first, segment[computes], trace.end_s[computes])
    return np.asarray(trace.end_s[rows] >= first[segment[rows]] - CLOCK_S)


def _posted(segment: Int64, computes: Int64, received: Int64) -> Int64:
    """Return edges to each transfer from the computing before the one that it serves."""
    before, after = computes[:-1], received[1:]
    own = (segment[before] == segment[computes[1:]]) & (after >= 0)
    edges: Int64 = np.stack([before, after], axis=1)[own]
    return edges


def _linked(computes: Int64, feeder: Int64, sent: Int64, received: Int64) -> tuple[Int64, Int64]:
    """Return edges from each feeder to what it feeds, through transfers, and those that meet."""
    send = _sends(computes, feeder, sent)
    has_send, has_receive = send >= 0, received >= 0
    fed = feeder >= 0
    parts = [
        (computes, sent, sent >= 0),
        (received, computes, has_receive),
        (feeder, received, fed & has_receive & ~has_send),
        (send, computes, fed & has_send & ~has_receive),
        (feeder, computes, fed & ~has_send & ~has_receive),
    ]
    edges = np.concatenate([np.stack([a, b], axis=1)[own] for a, b, own in parts])
    return edges, np.stack([send, received], axis=1)[has_send & has_receive]


def _unmet(computes: Int64, feeder: Int64, sent: Int64, received: Int64) -> Int64:
    """Return the send that serves each computing where no receive was recorded, or -1 [C]."""
    return np.where(received < 0, _sends(computes, feeder, sent), -1)


def _sends(computes: Int64, feeder: Int64, sent: Int64) -> Int64:
    """Return the send that serves each computing, or -1 [C]."""
    place = np.minimum(np.searchsorted(computes, feeder), len(computes) - 1)
    return np.where(feeder >= 0, sent[place], -1)
