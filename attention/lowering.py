"""Lower a plan for one rank: which rows it computes, sends away and receives.

Lowered once per cell and used by every layer, forward and backward. Only what moves is
lowered; local tiles stay slices of the rank's own tensors.

Shapes: P sequences (one bin each), n tiles; rows are token offsets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.plan import Moves, Plan

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TileRows:
    """Tiles of one rank, in the order in which they are computed or travel.

    Attributes:
        query_start: [n] offset of the tile's first query in the tensor that holds its queries.
        key_start: [n] offset of the document's first token in the tensor that holds its keys.
        row_begin: [n] first query row, counted from the document's first token.
        row_end: [n] one past the last query row; keys ``0:row_end`` are read.
    """

    query_start: Int64
    key_start: Int64
    row_begin: Int64
    row_end: Int64

    def __len__(self) -> int:
        return len(self.row_end)

    @property
    def query_tokens(self) -> Int64:
        """[n] query rows of each tile."""
        return self.row_end - self.row_begin

    def query_slices(self) -> list[slice]:
        """Return the tensor rows of each tile's queries."""
        return _slices(self.query_start, self.query_start + self.query_tokens)

    def key_slices(self) -> list[slice]:
        """Return the tensor rows of each tile's keys."""
        return _slices(self.key_start, self.key_start + self.row_end)

    def features(self) -> Int64:
        """Return the [n, 4] features of the tiles."""
        return tile_features(self.row_begin, self.row_end)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredPlan:
    """One rank's part of a cell's plan.

    Attributes:
        tokens: of the rank's own sequence; what follows is padding.
        local: tiles of the rank's own sequence that it computes itself.
        sent: tiles of its own sequence computed elsewhere, by target rank.
        sent_to: [P] number of ``sent`` tiles for each target.
        received: tiles of others that it computes, by source rank, as they arrive.
        received_from: [P] number of ``received`` tiles from each source.
        moved: tiles that move in the whole cell; 0 is plain Ulysses.
        load_ticks: [P] predicted cost of every bin under this plan.
    """

    tokens: int
    local: TileRows
    sent: TileRows
    sent_to: Int64
    received: TileRows
    received_from: Int64
    moved: int
    load_ticks: Int64


def lower(plan: Plan, place: int) -> LoweredPlan:
    """Return the part of the plan of the rank at ``place``, 0..P-1."""
    moves, bins = plan.moves, len(plan.lengths)
    sent = _by_peer(moves, moves.source == place, moves.target)
    received = _by_peer(moves, moves.target == place, moves.source)
    return LoweredPlan(
        tokens=int(plan.lengths[place].sum()),
        local=_own_tiles(plan, place, *_kept_tiles(plan, place)),
        sent=_own_tiles(
            plan, place, moves.document[sent], moves.row_begin[sent], moves.row_end[sent]
        ),
        sent_to=np.bincount(moves.target[sent], minlength=bins).astype(np.int64),
        received=_packed_tiles(moves.row_begin[received], moves.row_end[received]),
        received_from=np.bincount(moves.source[received], minlength=bins).astype(np.int64),
        moved=len(moves),
        load_ticks=plan.load_ticks,
    )


def _kept_tiles(plan: Plan, place: int) -> tuple[Int64, Int64, Int64]:
    kept = plan.kept_rows[place]
    documents = np.flatnonzero(kept)
    return documents, np.zeros_like(documents), kept[documents]


def _own_tiles(
    plan: Plan, place: int, document: Int64, row_begin: Int64, row_end: Int64
) -> TileRows:
    """Return tiles whose rows lie where the documents of the rank's own sequence lie."""
    lengths = plan.lengths[place]
    start = (np.cumsum(lengths) - lengths)[document]
    return TileRows(
        query_start=start + row_begin, key_start=start, row_begin=row_begin, row_end=row_end
    )


def _packed_tiles(row_begin: Int64, row_end: Int64) -> TileRows:
    """Return tiles whose queries, and whose keys, lie one after the other."""
    queries = row_end - row_begin
    return TileRows(
        query_start=np.cumsum(queries) - queries,
        key_start=np.cumsum(row_end) - row_end,
        row_begin=row_begin,
        row_end=row_end,
    )


def tokens_by_peer(counts: Int64, tokens: Int64) -> list[int]:
    """Sum a per-tile token count by peer: [P] tile counts and [n] tokens to P sums."""
    ends = np.cumsum(counts)
    totals = np.concatenate(([0], np.cumsum(tokens)))
    return [int(value) for value in totals[ends] - totals[ends - counts]]


def _by_peer(moves: Moves, mine: NDArray[np.bool_], peer: Int64) -> Int64:
    """Return indices of the moves that are mine, by peer, then document, then row."""
    chosen = np.flatnonzero(mine)
    order = np.lexsort((moves.row_begin[chosen], moves.document[chosen], peer[chosen]))
    return np.asarray(chosen[order], dtype=np.int64)


def _slices(begins: Int64, ends: Int64) -> list[slice]:
    return [slice(*rows) for rows in zip(begins.tolist(), ends.tolist(), strict=True)]
