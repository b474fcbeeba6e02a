"""Tiles as arrays: one row for each property, no object for each tile. Pure numpy.

Shapes: n tiles. Heads are counted from the first head of the bin that holds the tiles at home.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import TileCost
from libra.attention.heads import HeadRun

Int64 = NDArray[np.int64]


class Tile(NamedTuple):
    """One tile, for the few that a planner looks at closely; as a row of ``Tiles``."""

    document: int
    head_begin: int
    head_end: int
    kv_begin: int
    kv_end: int
    row_begin: int
    row_end: int

    @property
    def kv_heads(self) -> int:
        return self.kv_end - self.kv_begin

    @property
    def group(self) -> int:
        """Query heads for each kv head."""
        return (self.head_end - self.head_begin) // (self.kv_end - self.kv_begin)

    def first_heads(self, kv_heads: int, row_begin: int) -> "Tile":
        """Return the rows from ``row_begin`` on of the first kv heads."""
        return self._replace(
            head_end=self.head_begin + kv_heads * self.group,
            kv_end=self.kv_begin + kv_heads,
            row_begin=row_begin,
        )

    def without(self, part: "Tile") -> "list[Tile]":
        """Return what is left of the tile when its last rows of its first heads go."""
        rests = []
        if part.row_begin > self.row_begin:
            rests.append(part._replace(row_begin=self.row_begin, row_end=part.row_begin))
        if part.kv_end < self.kv_end:
            rests.append(self._replace(head_begin=part.head_end, kv_begin=part.kv_end))
        return rests


@dataclass(frozen=True, slots=True)
class Tiles:
    """Query rows of documents for some heads.

    A tile reads keys ``0:row_end`` of its document, with the kv heads that its query heads share.

    Attributes:
        columns: [7, n] int64: ``document`` within its packed sequence; query heads ``head_begin``
            to ``head_end`` and the kv heads ``kv_begin`` to ``kv_end`` that they read; query rows
            ``row_begin`` to ``row_end``, counted from the document's first token.
    """

    columns: Int64

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def __getitem__(self, chosen: slice | Int64 | NDArray[np.bool_]) -> "Tiles":
        return Tiles(self.columns[:, chosen])

    @classmethod
    def rows(cls, tiles: Sequence[Tile]) -> "Tiles":
        """Return tiles from one tuple each."""
        columns = np.array(tiles, dtype=np.int64).reshape(-1, len(Tile._fields)).T
        return cls(np.ascontiguousarray(columns))

    @classmethod
    def concatenate(cls, parts: "Sequence[Tiles]") -> "Tiles":
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(np.zeros((len(Tile._fields), 0), dtype=np.int64))
        return cls(np.concatenate([part.columns for part in parts], axis=1))

    @classmethod
    def whole(cls, lengths: Int64, runs: tuple[HeadRun, ...]) -> "Tiles":
        """Return every document for every run of heads, document by document."""
        columns = np.empty((len(Tile._fields), len(lengths), len(runs)), dtype=np.int64)
        columns[0] = np.arange(len(lengths))[:, None]
        columns[1:5] = np.array(runs, dtype=np.int64).reshape(-1, 4).T[:, None]
        columns[5] = 0
        columns[6] = lengths[:, None]
        return cls(columns.reshape(len(Tile._fields), -1))

    def tile(self, index: int) -> Tile:
        """Return one tile as plain integers."""
        return Tile(*self.columns[:, index].tolist())

    @property
    def document(self) -> Int64:
        return self._column(0)

    @property
    def head_begin(self) -> Int64:
        return self._column(1)

    @property
    def head_end(self) -> Int64:
        return self._column(2)

    @property
    def kv_begin(self) -> Int64:
        return self._column(3)

    @property
    def kv_end(self) -> Int64:
        return self._column(4)

    @property
    def row_begin(self) -> Int64:
        return self._column(5)

    @property
    def row_end(self) -> Int64:
        return self._column(6)

    def _column(self, index: int) -> Int64:
        column: Int64 = self.columns[index]
        return column

    @property
    def query_tokens(self) -> Int64:
        """[n] query rows."""
        return self.row_end - self.row_begin

    @property
    def query_heads(self) -> Int64:
        """[n] query heads."""
        return self.head_end - self.head_begin

    @property
    def kv_heads(self) -> Int64:
        """[n] kv heads."""
        return self.kv_end - self.kv_begin

    @property
    def query_vectors(self) -> Int64:
        """[n] head-sized vectors of queries, as many as of outputs."""
        return self.query_tokens * self.query_heads

    @property
    def key_vectors(self) -> Int64:
        """[n] head-sized vectors of keys, as many as of values."""
        return self.row_end * self.kv_heads

    def load_ticks(self, cost: TileCost) -> Int64:
        """Return [n] costs: ticks of one kv head's group, times query heads."""
        return cost.price(self.row_begin, self.row_end) * self.query_heads
