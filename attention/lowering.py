"""Lower a plan for one rank: which rows it computes, sends away and receives, as index arrays.

Lowered once per cell and used by every layer, forward and backward. Only what moves is
lowered; local tiles stay slices of the rank's own tensors.

Shapes: P sequences (one bin each), n tiles; rows are token offsets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.plan import Plan

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TileRows:
    """Tiles of one rank, in the order in which they are computed or travel.

    Attributes:
        start: [n] offset of the document's first token in the tensor that holds it.
        row_begin: [n] first query row, counted from the document's first token.
        row_end: [n] one past the last query row; keys ``0:row_end`` are read.
    """

    start: Int64
    row_begin: Int64
    row_end: Int64

    def __len__(self) -> int:
        return len(self.start)

    def query_rows(self) -> Int64:
        """Return the tensor rows of all query tokens, tile after tile."""
        return _ranges(self.start + self.row_begin, self.start + self.row_end)

    def key_rows(self) -> Int64:
        """Return the tensor rows of all keys, tile after tile."""
        return _ranges(self.start, self.start + self.row_end)

    def features(self) -> Int64:
        """Return the [n, 4] features of the tiles."""
        return tile_features(self.row_begin, self.row_end)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredPlan:
    """One rank's part of a cell's plan.

    Attributes:
        local: tiles of the rank's own sequence that it computes itself.
        sent: tiles of its own sequence computed elsewhere, by target rank.
        sent_to: [P] number of ``sent`` tiles for each target.
        received: tiles of others that it computes, by source rank; ``start`` is the offset of
            the tile's keys in the received keys.
        received_from: [P] number of ``received`` tiles from each source.
        moved: tiles that move in the whole cell; 0 is plain Ulysses.
        load_ticks: [P] predicted cost of every bin under this plan.
    """

    local: TileRows
    sent: TileRows
    sent_to: Int64
    received: TileRows
    received_from: Int64
    moved: int
    load_ticks: Int64


def lower(plan: Plan, place: int) -> LoweredPlan:
    """Return the part of the plan of the rank at ``place``, 0..P-1."""
    starts = [np.cumsum(lengths) - lengths for lengths in plan.lengths]
    own = plan.lengths[place]
    kept = plan.kept_rows[place]
    computed = np.flatnonzero(kept)
    sent = _by_peer(plan, plan.moves.source == place, plan.moves.target)
    received = _by_peer(plan, plan.moves.target == place, plan.moves.source)
    bins = len(plan.lengths)
    moves = plan.moves
    received_keys = moves.row_end[received]
    return LoweredPlan(
        local=TileRows(
            start=starts[place][computed],
            row_begin=np.zeros(len(computed), dtype=np.int64),
            row_end=kept[computed],
        ),
        sent=TileRows(
            start=starts[place][moves.document[sent]] if len(own) else moves.document[sent],
            row_begin=moves.row_begin[sent],
            row_end=moves.row_end[sent],
        ),
        sent_to=np.bincount(moves.target[sent], minlength=bins).astype(np.int64),
        received=TileRows(
            start=np.cumsum(received_keys) - received_keys,
            row_begin=moves.row_begin[received],
            row_end=moves.row_end[received],
        ),
        received_from=np.bincount(moves.source[received], minlength=bins).astype(np.int64),
        moved=len(moves),
        load_ticks=plan.load_ticks,
    )


def tokens_by_peer(counts: Int64, tokens: Int64) -> list[int]:
    """Sum a per-tile token count by peer: [P] tile counts and [n] tokens to P sums."""
    ends = np.cumsum(counts)
    totals = np.concatenate(([0], np.cumsum(tokens)))
    return [int(value) for value in totals[ends] - totals[ends - counts]]


def _by_peer(plan: Plan, mine: Any, peer: Int64) -> Int64:
    """Return indices of the moves that are mine, by peer, then document, then row."""
    chosen = np.flatnonzero(mine)
    moves = plan.moves
    order = np.lexsort((moves.row_begin[chosen], moves.document[chosen], peer[chosen]))
    return np.asarray(chosen[order], dtype=np.int64)


def _ranges(begins: Int64 | Sequence[int], ends: Int64 | Sequence[int]) -> Int64:
    """Concatenate ``arange(begin, end)`` of every pair without a loop."""
    begins, ends = np.asarray(begins, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    counts = ends - begins
    offsets = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(begins - offsets, counts)
