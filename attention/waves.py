"""Divide what moves among waves, so that one wave travels while the last one is computed.

A tile of several kv heads is cut between heads: both parts then carry their own keys, so the
first wave leaves with half of the bytes and comes back with half of the work done. Tiles of one
kv head go whole to the wave in which their target has least to do. Pure.

Shapes: n tiles.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from libra.attention.cost import TileCost
from libra.attention.tiles import Int64, Tile, Tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Moves:
    """Tiles that leave home: [n] source and target bins and waves beside the [n] tiles.

    Sorted by wave, source, target, heads and document: the order in which they travel.
    """

    source: Int64
    target: Int64
    wave: Int64
    tiles: Tiles

    def __len__(self) -> int:
        return len(self.source)


def make_moves(
    moved: Sequence[tuple[int, int, Sequence[Tile]]], waves: int, cost: TileCost
) -> Moves:
    """Return moves in ``waves`` waves at most, from (source, target, tiles) in any order."""
    entries = sorted(
        (wave, source, target, tile.head_end, tile.head_begin, tile)
        for source, target, wave, tile in _in_waves(moved, waves, cost)
    )
    columns = np.array([entry[:3] for entry in entries], dtype=np.int64).reshape(-1, 3)
    wave, source, target = np.ascontiguousarray(columns.T)
    tiles = Tiles.rows([entry[-1] for entry in entries])
    return Moves(source=source, target=target, wave=wave, tiles=tiles)


def _in_waves(
    moved: Sequence[tuple[int, int, Sequence[Tile]]], waves: int, cost: TileCost
) -> Iterator[tuple[int, int, int, Tile]]:
    loads: dict[int, list[int]] = defaultdict(lambda: [0] * waves)
    for source, target, tiles in moved:
        for tile in tiles:
            # Short documents in bulk are many enough to fill waves whole.
            count = min(waves, tile.kv_heads) if len(tiles) == 1 else 1
            for part in _head_chunks(tile, count):
                own = loads[target]
                wave = own.index(min(own))
                heads = part.head_end - part.head_begin
                own[wave] += cost.price_one(part.row_begin, part.row_end) * heads
                yield source, target, wave, part


def _head_chunks(tile: Tile, count: int) -> Iterator[Tile]:
    """Cut a tile into ``count`` parts of nearly equally many kv heads."""
    bounds = [tile.kv_begin + tile.kv_heads * part // count for part in range(count + 1)]
    for low, high in pairwise(bounds):
        yield tile._replace(
            kv_begin=low,
            kv_end=high,
            head_begin=tile.head_begin + (low - tile.kv_begin) * tile.group,
            head_end=tile.head_begin + (high - tile.kv_begin) * tile.group,
        )
