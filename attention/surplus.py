"""Move the surplus of overloaded bins to bins with room, a few large pieces at a time.

Again and again the most overloaded bin gives to the one with most room, filling it. So a pool
of B bins comes out even in about B - 1 moves, and the owner of the longest document, whose every
piece carries the document's earlier keys along, gives few large pieces and not many small ones.
Pure: integers in, integers out.

Shapes: B bins; n moves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from libra.attention.cost import TileCost
from libra.attention.piece import Gift, Items, Wish
from libra.attention.tiles import Int64, Tile, Tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How far to go.

    Attributes:
        tolerance_permille: a bin may stay this far above its fair share.
        block_rows: cuts fall on multiples of it.
        spare_vectors: [B] head-sized vectors of queries and keys that each bin may receive.
        nodes: [B] node of each bin; bins of the same node are given to first.
    """

    tolerance_permille: int
    block_rows: int
    spare_vectors: Sequence[int]
    nodes: Sequence[int]


class SurplusSearch:
    """One search from home: who gives what to whom.

    Attributes:
        moved: (source, target, tiles) of each move, in the order found.
        loads: cost of each bin, in ticks times query heads.
        items: what is left at home, of the bins that were looked at.
        out_of_memory: whether a bin with room was passed over because it could hold no more.
    """

    def __init__(
        self,
        home: Callable[[int], Tiles],
        loads: Int64,
        cost: TileCost,
        limits: Limits,
        speeds: Sequence[int],
    ) -> None:
        self.moved: list[tuple[int, int, list[Tile]]] = []
        self.loads = [int(load) for load in loads]
        self.out_of_memory = False
        self._home = home
        self.items: dict[int, Items] = {}
        self._cost, self._limits, self._speeds = cost, limits, speeds
        self._spare = list(limits.spare_vectors)

    def run(self) -> None:
        """Search until no bin is above its share, or nothing that is above it can be given."""
        self._share_out()
        # Where blocks are coarse, what is left over may be too much for any bin's share.
        for _ in range(2 * len(self.loads)):
            if min(self._room()) >= 0 or not self._even_out():
                return

    def _share_out(self) -> None:
        stuck: set[int] = set()
        # Every move fills a bin or empties a surplus; short documents in bulk take two.
        for _ in range(8 * len(self.loads)):
            room = self._room()
            source = min(
                (own for own in range(len(room)) if own not in stuck),
                key=room.__getitem__,
                default=None,
            )
            if source is None or room[source] >= 0:
                return
            if not self._give(source, -room[source], room):
                stuck.add(source)

    def _even_out(self) -> bool:
        """Let the slowest bin give the fastest one piece, that makes the slower of both faster."""
        times = [load / speed for load, speed in zip(self.loads, self._speeds, strict=True)]
        source, target = times.index(max(times)), times.index(min(times))
        speed, own_speed = self._speeds[target], self._speeds[source]
        room = self.loads[source] * speed // own_speed - self.loads[target] - 1
        half, spare = room * own_speed // (speed + own_speed), self._spare[target]
        gifts = [
            (
                max(
                    (self.loads[source] - own.ticks) / own_speed,
                    (self.loads[target] + own.ticks) / speed,
                ),
                own,
            )
            for wish in (Wish(half, half, spare), Wish(half, room, spare))
            if (own := self._piece(source, wish)) is not None
        ]
        if not gifts:
            return False
        slower, gift = min(gifts, key=itemgetter(0))
        if slower >= times[source]:
            return False
        self._move(source, target, gift)
        return True

    def _room(self) -> list[int]:
        """Return how much each bin may still take; negative is what it has too much."""
        # Anew each time: a cut adds work, since both parts read the keys before it.
        total = sum(self.loads) * (1000 + self._limits.tolerance_permille)
        speeds, whole = self._speeds, 1000 * sum(self._speeds)
        return [
            total * speed // whole - load for speed, load in zip(speeds, self.loads, strict=True)
        ]

    def _give(self, source: int, surplus: int, room: list[int]) -> bool:
        for target in self._targets(source, surplus, room):
            wish = Wish(min(surplus, room[target]), room[target], self._spare[target])
            gift = self._choose(source, wish)
            if gift is not None:
                self._move(source, target, gift)
                return True
            unbound = Wish(wish.ticks, wish.room, 1 << 62)
            self.out_of_memory |= self._choose(source, unbound) is not None
        return False

    def _targets(self, source: int, surplus: int, room: list[int]) -> list[int]:
        """Return bins with room in the order to try them.

        A bin that takes the whole surplus and is filled by it comes first: a bin that receives
        twice holds two documents' keys. Bins of the source's node come before others.
        """
        nodes = self._limits.nodes
        others = [own for own in range(len(room)) if own != source and room[own] > 0]
        most = max((room[own] for own in others), default=0)
        # A crumb on the own node is not worth a piece of its own, with its keys sent along.
        enough = min(surplus, most) // 2
        return sorted(
            others,
            key=lambda own: (
                nodes[own] != nodes[source] or room[own] < enough,
                room[own] < surplus,
                room[own] if room[own] >= surplus else -room[own],
            ),
        )

    def _choose(self, source: int, wish: Wish) -> Gift | None:
        if 2 * self._items_of(source).largest_ticks() < wish.ticks:
            whole = self._items_of(source).whole(wish)
            if whole is not None:
                return whole
        return self._piece(source, wish)

    def _piece(self, source: int, wish: Wish) -> Gift | None:
        items = self._items_of(source)
        if not len(items) or wish.ticks <= 0:
            return None
        return items.best(wish, self._limits.block_rows)

    def _move(self, source: int, target: int, gift: Gift) -> None:
        items = self._items_of(source)
        before = items.load_ticks
        items.take(gift)
        self.loads[source] += items.load_ticks - before
        self.loads[target] += gift.ticks
        self._spare[target] -= gift.vectors
        if not self._lengthens_last(source, target, gift):
            self.moved.append((source, target, list(gift.tiles)))

    def _lengthens_last(self, source: int, target: int, gift: Gift) -> bool:
        """Join a tail that ends where the last one began: its keys travel once."""
        if not self.moved or self.moved[-1][:2] != (source, target):
            return False
        last, tile = self.moved[-1][2][-1], gift.tiles[-1]
        joined = tile._replace(row_end=last.row_end)
        if len(gift.tiles) > 1 or joined != last._replace(row_begin=tile.row_begin):
            return False
        if tile.row_end != last.row_begin:
            return False
        self.moved[-1][2][-1] = joined
        apart = self._ticks(last) + self._ticks(tile)
        self.loads[target] += self._ticks(joined) - apart
        self._spare[target] += tile.row_end * tile.kv_heads
        return True

    def _ticks(self, tile: Tile) -> int:
        heads = tile.head_end - tile.head_begin
        return self._cost.price_one(tile.row_begin, tile.row_end) * heads

    def _items_of(self, source: int) -> Items:
        if source not in self.items:
            self.items[source] = Items(self._home(source), self._cost)
        return self.items[source]
