"""Choose what an overloaded bin gives away: the tail of a document with most cost per byte.

Cutting rows [a, L) off a document of L costs n (L - a) + L vectors of traffic for each of k kv
heads with n query heads, and saves k n (L^2 - a^2) / 2 pairs: few heads of a long tail are best.
The thousands of tiles that stay are arrays; the few that are looked at are plain integers, since
an array operation costs more than the sum over all of them.

Shapes: n items, a document's heads that are still at home together.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from libra.attention.cost import TileCost
from libra.attention.tiles import Tile, Tiles

# Documents whose kv head costs this many times what is wanted: cutting a fifth to a half off a
# document is densest, so neither the next larger one nor the largest alone is enough to look at.
_MULTIPLES = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, float("inf"))


class Wish(NamedTuple):
    """What a target can take.

    Attributes:
        ticks: that the source would like to give.
        room: ticks that the target must not pass.
        vectors: head-sized vectors of queries and keys that it may still hold.
    """

    ticks: int
    room: int
    vectors: int


class Gift(NamedTuple):
    """Tiles to move: whole items but for the last, of which ``tiles[-1]`` is a part.

    Attributes:
        tiles: what moves.
        items: the items that they are, or are a part of.
        ticks: their cost times query heads.
        vectors: their head-sized vectors of queries and keys.
    """

    tiles: Sequence[Tile]
    items: Sequence[Tile]
    ticks: int
    vectors: int


class Items:
    """What a bin still computes at home, cheapest kv head first."""

    def __init__(self, home: Tiles, cost: TileCost) -> None:
        ticks = cost.price(0, home.row_end) * (home.query_heads // np.maximum(home.kv_heads, 1))
        order = np.argsort(ticks, kind="stable")
        self._cost, self._home = cost, home
        # Sorted by the cost of one kv head; a row of the home tiles, or a rest of one beyond.
        self._ticks: list[int] = ticks[order].tolist()
        self._rows: list[int] = order.tolist()
        self._rests: list[Tile] = []
        self._load = int(ticks @ home.kv_heads)
        self._largest_kv = int(home.kv_heads.max(initial=0))

    def __len__(self) -> int:
        return len(self._ticks)

    @property
    def load_ticks(self) -> int:
        """What all items cost, in ticks times query heads."""
        return self._load

    def left(self) -> Tiles:
        """Return what is still at home."""
        rows = np.array(self._rows, dtype=np.int64)
        beyond = rows[rows >= len(self._home)] - len(self._home)
        rests = Tiles.rows([self._rests[own] for own in beyond.tolist()])
        return Tiles.concatenate([self._home[rows[rows < len(self._home)]], rests])

    def best(self, wish: Wish, block_rows: int) -> Gift | None:
        """Return the piece with fewest bytes per cost that fills at least half of the wish."""
        best, best_rank = None, (2, 0.0)
        for item, kv_heads in self._candidates(wish.ticks):
            heads = kv_heads * item.group
            tail = Tail(self._cost, item.row_end, heads, block_rows)
            row_begin = tail.nearest(wish.ticks, wish.room)
            ticks = tail.ticks(row_begin)
            vectors = heads * (item.row_end - row_begin) + kv_heads * item.row_end
            # A crumb is not worth a message of its own.
            if 16 * ticks < wish.ticks or not 0 < ticks <= wish.room or vectors > wish.vectors:
                continue
            rank = (0, vectors / ticks) if 2 * ticks >= wish.ticks else (1, 1 / ticks)
            if rank < best_rank:
                best = Gift([item.first_heads(kv_heads, row_begin)], [item], ticks, vectors)
                best_rank = rank
        return best

    def whole(self, wish: Wish) -> Gift | None:
        """Return whole items, densest first, that fill the wish without passing its limits."""
        found, ticks, vectors = [], 0, 0
        items = [(self._item(row), own) for row, own in zip(self._rows, self._ticks, strict=True)]
        items.sort(key=lambda pair: -pair[1] / ((pair[0].group + 1) * pair[0].row_end))
        for item, own in items:
            more = own * item.kv_heads
            room = item.kv_heads * (item.group + 1) * item.row_end
            if ticks >= wish.ticks or ticks + more > wish.room or vectors + room > wish.vectors:
                break
            found.append(item)
            ticks, vectors = ticks + more, vectors + room
        return Gift(found, found, ticks, vectors) if found else None

    def largest_ticks(self) -> int:
        """Return what the costliest item may cost at most."""
        return self._ticks[-1] * self._largest_kv if self._ticks else 0

    def take(self, gift: Gift) -> None:
        """Remove a gift, and keep what is left of its items: earlier rows, and other heads."""
        for item, tile in zip(gift.items, gift.tiles, strict=True):
            self._remove(item)
            for rest in item.without(tile):
                self._add(rest)

    def _unit_ticks(self, item: Tile) -> int:
        return self._cost.price_one(item.row_begin, item.row_end) * item.group

    def _remove(self, item: Tile) -> None:
        at = bisect_left(self._ticks, self._unit_ticks(item))
        while self._item(self._rows[at]) != item:
            at += 1
        self._load -= self._ticks[at] * item.kv_heads
        del self._ticks[at], self._rows[at]

    def _add(self, rest: Tile) -> None:
        ticks = self._unit_ticks(rest)
        at = bisect_left(self._ticks, ticks)
        self._ticks.insert(at, ticks)
        self._rows.insert(at, len(self._home) + len(self._rests))
        self._rests.append(rest)
        self._load += ticks * rest.kv_heads

    def _item(self, row: int) -> Tile:
        if row < len(self._home):
            return self._home.tile(row)
        return self._rests[row - len(self._home)]

    def _candidates(self, ticks: int) -> list[tuple[Tile, int]]:
        """Return items, and numbers of their kv heads, that are worth a look."""
        last = len(self) - 1
        found: dict[tuple[int, int], Tile] = {}
        for heads in _head_counts(self._largest_kv):
            for multiple in _MULTIPLES:
                at = min(bisect_left(self._ticks, ticks / heads * multiple), last)
                item = self._item(self._rows[at])
                found[at, min(heads, item.kv_heads)] = item
                if at == last:
                    break
        return [(item, heads) for (_, heads), item in found.items()]


@dataclass(frozen=True, slots=True)
class Tail:
    """Where to cut a document: its tails begin at multiples of ``block_rows``.

    Attributes:
        cost: of a tile.
        row_end: the document's rows.
        heads: query heads of the tail.
        block_rows: what cuts are multiples of.
    """

    cost: TileCost
    row_end: int
    heads: int
    block_rows: int

    def ticks(self, row_begin: int) -> int:
        """Return the cost of the tail from a row."""
        return self.cost.price_one(row_begin, self.row_end) * self.heads

    def nearest(self, ticks: int, room: int) -> int:
        """Return the first row of the shortest tail that costs ``ticks``, or as much as fits."""
        if ticks < room:
            begin = self._shortest(ticks)
            if self.ticks(begin) <= room:
                return begin
        return self._longest(room)

    def _shortest(self, ticks: int) -> int:
        """Return the first row of the shortest tail of at least ``ticks``, or the whole."""
        block = self._guess(ticks)
        while block and self.ticks(block * self.block_rows) < ticks:
            block -= 1
        while self.ticks((block + 1) * self.block_rows) >= ticks:
            block += 1
        return block * self.block_rows

    def _longest(self, ticks: int) -> int:
        """Return the first row of the longest tail of at most ``ticks``; may be empty."""
        block = self._guess(ticks)
        while self.ticks(block * self.block_rows) > ticks:
            block += 1
        while block and self.ticks((block - 1) * self.block_rows) <= ticks:
            block -= 1
        return min(block * self.block_rows, self.row_end)

    def _guess(self, ticks: int) -> int:
        """Return the block that about begins such a tail: exact prices settle it in a step."""
        return int(self.cost.first_row(self.row_end, ticks / self.heads) / self.block_rows)


def _head_counts(most: int) -> list[int]:
    """Return the numbers of kv heads to try: all of a few, powers of two beyond."""
    few = list(range(1, min(most, 4) + 1))
    while few and few[-1] < most:
        few.append(min(most, few[-1] * 2))
    return few
