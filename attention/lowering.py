"""Lower a plan for one bin: which kernel calls it makes, what it sends away and what it receives.

Lowered once per cell and used by every layer, forward and backward. Local tiles stay slices of
the rank's own tensors: documents that lie one after the other, uncut, are one call. Only what
moves is packed.

Shapes: B bins; n tiles; rows are token offsets, heads are counted from the bin's first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from libra.attention.plan import Plan
from libra.attention.segments import Segments
from libra.attention.tiles import Int64, Tiles


@dataclass(frozen=True, kw_only=True)
class TileBatch:
    """The tiles of one kernel call: equal heads, rows that lie one after the other.

    Attributes:
        heads, kv: query and kv heads of the tensors that hold the tiles.
        queries, keys: rows of those tensors.
        segments: the tiles.
    """

    heads: slice
    kv: slice
    queries: slice
    keys: slice
    segments: Segments

    @cached_property
    def singles(self) -> "tuple[TileBatch, ...]":
        """One call for each tile, for kernels that take no more."""
        if len(self.segments) == 1:
            return (self,)
        tokens = self.segments.query_tokens, self.segments.key_tokens
        starts = self.queries.start, self.keys.start
        rows = [
            _slices(start + np.cumsum(own) - own, own)
            for start, own in zip(starts, tokens, strict=True)
        ]
        return tuple(
            replace(self, queries=queries, keys=keys, segments=segments)
            for queries, keys, segments in zip(*rows, self.segments.singles, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """Tiles with equal heads that travel from one bin to another in one wave.

    Attributes:
        peer: the bin at the other end.
        heads, kv: query and kv heads at home.
        query_start, key_start: [n] rows at home where the tiles' queries and keys begin.
        segments: the tiles, as they lie once packed.
    """

    peer: int
    heads: slice
    kv: slice
    query_start: Int64
    key_start: Int64
    segments: Segments

    @cached_property
    def query_rows(self) -> list[slice]:
        """Rows at home of each tile's queries."""
        return _slices(self.query_start, self.segments.query_tokens)

    @cached_property
    def key_rows(self) -> list[slice]:
        """Rows at home of each tile's keys."""
        return _slices(self.key_start, self.segments.key_tokens)

    @property
    def query_shape(self) -> tuple[int, int]:
        """Rows and heads of the queries, packed."""
        rows = int(self.segments.query_offsets[-1])
        return rows, int(self.heads.stop - self.heads.start)

    @property
    def key_shape(self) -> tuple[int, int]:
        """Rows and heads of the keys, packed."""
        return int(self.segments.key_offsets[-1]), int(self.kv.stop - self.kv.start)

    @cached_property
    def batch(self) -> TileBatch:
        """The call that computes the tiles where they lie packed."""
        (queries, heads), (keys, kv) = self.query_shape, self.key_shape
        return TileBatch(
            heads=slice(0, heads),
            kv=slice(0, kv),
            queries=slice(0, queries),
            keys=slice(0, keys),
            segments=self.segments,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wave:
    """What one bin sends and receives in one exchange, each by peer and then by heads."""

    sent: tuple[Parcel, ...]
    received: tuple[Parcel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredPlan:
    """One bin's part of a cell's plan.

    Attributes:
        tokens: of the bin's own sequence that belong to documents; what follows is padding.
        first, rest: calls on its own tensors, before and after what it receives; all are in
            ``rest`` where it receives nothing.
        waves: exchanges that any bin of the cell takes part in.
        moved: tiles that move in the whole cell; 0 is plain Ulysses.
        load_ticks: [B] predicted cost of every bin under this plan.
    """

    tokens: int
    first: tuple[TileBatch, ...]
    rest: tuple[TileBatch, ...]
    waves: tuple[Wave, ...]
    moved: int
    load_ticks: Int64


def lower(plan: Plan, own: int) -> LoweredPlan:
    """Return the part of the plan of bin ``own``, 0..B-1."""
    home = _starts(plan, own)
    kept = plan.kept(own)
    waves = tuple(_waves(plan, own))
    # Half of the work before what is received hides its arrival, half after it its return.
    pairs = kept.row_end * (kept.row_end + 1) * kept.query_heads
    done = np.cumsum(pairs)
    late = 2 * (done - pairs) >= done[-1:]
    if not any(wave.received for wave in waves):
        late[:] = True
    return LoweredPlan(
        tokens=int(plan.lengths[plan.sequence(own)].sum()),
        first=tuple(_local(kept[~late], home)),
        rest=tuple(_local(kept[late], home)),
        waves=waves,
        moved=len(plan.moves),
        load_ticks=plan.load_ticks,
    )


def _starts(plan: Plan, own: int) -> Int64:
    """Return where each document of a bin's sequence begins."""
    lengths = plan.lengths[plan.sequence(own)]
    return np.asarray(np.cumsum(lengths) - lengths)


def _local(tiles: Tiles, starts: Int64) -> Iterator[TileBatch]:
    """Join tiles of equal heads whose rows lie one after the other."""
    if not len(tiles):
        return
    if (tiles.head_begin != tiles.head_begin[0]).any() or (
        tiles.head_end != tiles.head_end[0]
    ).any():
        tiles = tiles[np.lexsort((tiles.document, tiles.head_begin, tiles.head_end))]
    begin = starts[tiles.document]
    follows = (
        (tiles.head_begin[1:] == tiles.head_begin[:-1])
        & (tiles.head_end[1:] == tiles.head_end[:-1])
        & (begin[1:] == begin[:-1] + tiles.row_end[:-1])
    )
    bounds = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(tiles)]
    for low, high in pairwise(bounds):
        rows = slice(int(begin[low]), int(begin[high - 1] + tiles.row_end[high - 1]))
        tokens = tiles.row_end[low:high]
        yield TileBatch(
            heads=slice(int(tiles.head_begin[low]), int(tiles.head_end[low])),
            kv=slice(int(tiles.kv_begin[low]), int(tiles.kv_end[low])),
            queries=rows,
            keys=rows,
            segments=Segments(query_tokens=tokens, key_tokens=tokens),
        )


def _waves(plan: Plan, own: int) -> Iterator[Wave]:
    moves = plan.moves
    for wave in np.unique(moves.wave):
        here = moves.wave == wave
        yield Wave(
            sent=tuple(_parcels(plan, here & (moves.source == own), moves.target)),
            received=tuple(_parcels(plan, here & (moves.target == own), moves.source)),
        )


def _parcels(plan: Plan, mine: NDArray[np.bool_], peer: Int64) -> Iterator[Parcel]:
    """Group my tiles by peer and heads; moves are sorted so that groups lie together."""
    chosen = np.flatnonzero(mine)
    if not len(chosen):
        return
    tiles, peers = plan.moves.tiles[chosen], peer[chosen]
    keys = np.stack((peers, tiles.head_begin, tiles.head_end))
    bounds = [0, *(np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist()]
    for low, high in zip(bounds, [*bounds[1:], len(chosen)], strict=True):
        part, source = tiles[low:high], int(plan.moves.source[chosen[low]])
        begin = _starts(plan, source)[part.document]
        yield Parcel(
            peer=int(peers[low]),
            heads=slice(int(part.head_begin[0]), int(part.head_end[0])),
            kv=slice(int(part.kv_begin[0]), int(part.kv_end[0])),
            query_start=begin + part.row_begin,
            key_start=begin,
            segments=Segments(query_tokens=part.query_tokens, key_tokens=part.row_end),
        )


def _slices(begins: Int64, tokens: Int64) -> list[slice]:
    return [
        slice(begin, begin + count)
        for begin, count in zip(begins.tolist(), tokens.tolist(), strict=True)
    ]
