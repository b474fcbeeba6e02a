"""What waits for what within a rank, other than transfers between stages, as it was recorded.

A rank computes, and does most else, one thing after the other. Collectives on parameters and
gradients run beside that: they begin after what had ended by then, and are waited for by what
needs their result.

Shapes: N operations; a segment is one rank in one step. Edges [E, 2] are (waited for, waiting).
"""

import numpy as np

from libra.balancer.trace import COMPUTE, FORWARD, Bool, Float64, Int64, Trace

TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
# Clocks of single precision tick this coarsely some minutes into a step.
CLOCK_S = 1e-4


def rank_edges(trace: Trace) -> Int64:
    """Return the edges between operations of the same rank [E, 2], transfers apart."""
    segment = trace.step * len(trace.ranks) + trace.worker
    computes = trace.is_any(*COMPUTE)
    before = last_before(computes, segment)
    beside = _beside(trace, segment, computes, before)
    main = np.flatnonzero(~beside & ~trace.is_any(*TRANSFERS))
    side = np.flatnonzero(beside)
    # Both collectives share a stream; kinds that are not known have one each.
    stream = np.where(trace.is_any(GATHER, SCATTER), len(trace.optypes), trace.optype)
    return np.concatenate(
        [
            chain(main, segment),
            chain(side, segment, stream),
            _begins(trace, side, before),
            _gathered(trace, segment, beside),
            _scattered(trace, segment, computes, beside),
        ]
    )


def chain(rows: Int64, *keys: Int64) -> Int64:
    """Return edges [E, 2] from each of some operations to the next with the same keys."""
    order = rows[np.lexsort((rows, *[key[rows] for key in reversed(keys)]))]
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def last_before(mask: Bool, segment: Int64) -> Int64:
    """Return the nearest earlier operation of the segment that the mask holds, or -1 [N]."""
    rows = np.arange(len(mask))
    seen = np.maximum.accumulate(np.where(mask, rows, -1))
    before = np.concatenate([[-1], seen[:-1]]).astype(np.int64)
    return np.where((before >= 0) & (segment[before] == segment), before, -1)


def _beside(trace: Trace, segment: Int64, computes: Bool, before: Int64) -> Bool:
    """Tell which operations run beside the rank's computing, rather than in turn with it [N]."""
    overlaps = (before >= 0) & (trace.end_s[before] > trace.start_s + CLOCK_S)
    final = np.full(int(segment.max()) + 1, -np.inf)
    np.maximum.at(final, segment[computes], trace.start_s[computes])
    early = trace.start_s < final[segment]
    collective = trace.is_any(GATHER, SCATTER) & early
    return (overlaps | collective) & ~computes & ~trace.is_any(*TRANSFERS)


def _begins(trace: Trace, side: Int64, before: Int64) -> Int64:
    """Return edges to operations beside from the last computing that had ended by then."""
    by = before[side]
    running = (by >= 0) & (trace.end_s[by] > trace.start_s[side] + CLOCK_S)
    by = np.where(running, before[by], by)
    return np.stack([by, side], axis=1)[by >= 0]


def _gathered(trace: Trace, segment: Int64, beside: Bool) -> Int64:
    """Return edges from gathering a chunk's parameters to its first forward."""
    chunks = int(trace.chunk.max()) + 1
    forward = np.flatnonzero(trace.is_any(FORWARD))
    first = _first(forward, segment * chunks + trace.chunk, (int(segment.max()) + 1) * chunks)
    gather = np.flatnonzero(trace.is_any(GATHER) & beside)
    # A gather without a chunk is for the first.
    target = first[segment[gather] * chunks + np.maximum(trace.chunk[gather], 0)]
    return _in_time(trace.start_s, trace.end_s, gather, target)


def _scattered(trace: Trace, segment: Int64, computes: Bool, beside: Bool) -> Int64:
    """Return edges from reducing gradients to what follows the rank's computing."""
    final = np.full(int(segment.max()) + 1, -1)
    np.maximum.at(final, segment[computes], np.flatnonzero(computes))
    rows = np.arange(len(segment))
    after = np.flatnonzero(
        (rows > final[segment]) & ~beside & ~computes & ~trace.is_any(*TRANSFERS)
    )
    first = _first(after, segment, int(segment.max()) + 1)
    scatter = np.flatnonzero(trace.is_any(SCATTER) & beside)
    return _in_time(trace.start_s, trace.end_s, scatter, first[segment[scatter]])


def _first(rows: Int64, key: Int64, size: int) -> Int64:
    """Return the first of some operations for each key, or -1 [size]."""
    first = np.full(size, -1)
    first[key[rows[::-1]]] = rows[::-1]
    return first


def _in_time(start_s: Float64, end_s: Float64, source: Int64, target: Int64) -> Int64:
    """Return edges that the recording bears out: the target began after the source ended."""
    known = (target >= 0) & (start_s[target] >= end_s[source] - CLOCK_S)
    return np.stack([source, target], axis=1)[known]
