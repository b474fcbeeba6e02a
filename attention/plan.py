"""Plan a cell: from plain Ulysses, move only the surplus of overloaded ranks to those with room.

After Ulysses' head split the ranks of a CP group carry equal work, so a cell has only P bins to
even out and one plan serves every plane. Each rank makes the plan by itself, so everything
here is integer and deterministic. Pure numpy.

Shapes: P sequences, each a bin at home; S_p documents in sequence p; n moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import TileCost, tile_features

Int64 = NDArray[np.int64]

NOMINAL_SPEED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """How a cell is planned.

    Attributes:
        pooling: off leaves every tile at home.
        tolerance_permille: stop when the slowest bin is this close to the mean.
        min_gain_permille: stay home when the slowest bin would gain less.
        block_rows: cuts fall on multiples of this, the kernels' own block.
        query_heads_per_kv_head: weighs query against key bytes of a moved tile.
    """

    pooling: bool = True
    tolerance_permille: int = 5
    min_gain_permille: int = 20
    block_rows: int = 64
    query_heads_per_kv_head: int = 1

    def __post_init__(self) -> None:
        for name in ("tolerance_permille", "min_gain_permille"):
            value = getattr(self, name)
            if not 0 <= value <= 1000:
                raise ValueError(f"{name}={value}: must be in 0..1000")
        for name in ("block_rows", "query_heads_per_kv_head"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Moves:
    """Tiles that leave home, one entry each, as [n] arrays.

    ``source`` and ``target`` are bins, ``document`` an index in the source's sequence, and
    query rows ``row_begin:row_end`` of the document move with keys ``0:row_end``.
    """

    source: Int64
    target: Int64
    document: Int64
    row_begin: Int64
    row_end: Int64

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole cell's plan.

    Attributes:
        lengths: P arrays [S_p] of document lengths.
        kept_rows: P arrays [S_p]; rows ``0:kept`` of a document are computed at home.
        moves: what is computed elsewhere.
        load_ticks: [P] predicted cost of each bin at nominal speed, in ticks.
        home_ticks: [P] the same under plain Ulysses.
    """

    lengths: tuple[Int64, ...]
    kept_rows: tuple[Int64, ...]
    moves: Moves
    load_ticks: Int64
    home_ticks: Int64
