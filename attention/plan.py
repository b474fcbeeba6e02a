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


def plan_cell(
    lengths: Sequence[Int64],
    cost: TileCost,
    settings: PlanSettings,
    speeds_permille: Sequence[int] = (),
) -> Plan:
    """Return the plan of a cell of P packed sequences.

    Args:
        lengths: P arrays [S_p] of positive document lengths.
        cost: the price of a tile.
        settings: how far to go.
        speeds_permille: speed of each bin, 1000 is nominal; empty when all are equal.

    Raises:
        ValueError: a length is not positive, or the number of speeds is not P.
    """
    home = _home_plan(lengths, cost)
    bins = len(home.lengths)
    speeds = list(speeds_permille) or [NOMINAL_SPEED] * bins
    if len(speeds) != bins or min(speeds) < 1:
        raise ValueError(f"speeds_permille={speeds}: must be {bins} positive integers")
    if not settings.pooling or bins < 2 or not home.home_ticks.any():
        return home
    balanced = _Balancer(home, cost, settings, speeds).run()
    before, after = (_slowest(plan.load_ticks, speeds) for plan in (home, balanced))
    return balanced if (before - after) * 1000 > settings.min_gain_permille * before else home


def _home_plan(lengths: Sequence[Int64], cost: TileCost) -> Plan:
    own = tuple(np.ascontiguousarray(part, dtype=np.int64) for part in lengths)
    for part in own:
        if len(part) and part.min() < 1:
            raise ValueError(f"lengths: {int(part.min())} is not a document length, at least 1")
    ticks = np.array([cost.ticks(tile_features(0, part)).sum() for part in own], dtype=np.int64)
    return Plan(
        lengths=own, kept_rows=own, moves=_moves([]), load_ticks=ticks, home_ticks=ticks.copy()
    )


def _slowest(load_ticks: Int64, speeds: Sequence[int]) -> int:
    return max(
        int(load) * NOMINAL_SPEED // speed for load, speed in zip(load_ticks, speeds, strict=True)
    )


def _moves(rows: Sequence[tuple[int, int, int, int, int]]) -> Moves:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    source, target, document, row_begin, row_end = columns
    return Moves(
        source=source, target=target, document=document, row_begin=row_begin, row_end=row_end
    )


class _Balancer:
    """Greedy search: again and again, the most overloaded bin gives to the one with most room.

    What it gives is a whole document or the tail of one, the piece with most cost per byte among
    those that fill a good part of the room: about P - 1 moves in all.
    """

    # Even lengths of thousands of short documents need many small moves; a count bounds them.
    _MOVES_PER_BIN = 16

    def __init__(
        self, home: Plan, cost: TileCost, settings: PlanSettings, speeds: Sequence[int]
    ) -> None:
        self._home = home
        self._cost = cost
        self._settings = settings
        self._kept = [part.copy() for part in home.lengths]
        self._loads = [int(ticks) for ticks in home.home_ticks]
        self._speeds = speeds
        self._rows: list[tuple[int, int, int, int, int]] = []

    def run(self) -> Plan:
        for _ in range(self._MOVES_PER_BIN * len(self._loads)):
            if not self._move_one():
                break
        return Plan(
            lengths=self._home.lengths,
            kept_rows=tuple(self._kept),
            moves=_moves(self._rows),
            load_ticks=np.array(self._loads, dtype=np.int64),
            home_ticks=self._home.home_ticks,
        )

    def _move_one(self) -> bool:
        # Anew each time: a cut adds work, since both parts read the keys before it.
        total = sum(self._loads)
        fair = [total * speed // sum(self._speeds) for speed in self._speeds]
        surplus = [load - share for load, share in zip(self._loads, fair, strict=True)]
        source = max(range(len(surplus)), key=surplus.__getitem__)
        target = min(range(len(surplus)), key=surplus.__getitem__)
        if surplus[source] * 1000 <= self._settings.tolerance_permille * fair[source]:
            return False
        piece = self._best_piece(self._kept[source], min(surplus[source], -surplus[target]))
        if piece is None:
            return False
        document, row_begin = piece
        row_end = int(self._kept[source][document])
        self._kept[source][document] = row_begin
        self._loads[source] += self._ticks(0, row_begin) - self._ticks(0, row_end)
        self._add_row((source, target, document, row_begin, row_end))
        return True

    def _ticks(self, row_begin: int, row_end: int) -> int:
        return int(self._cost.ticks(tile_features(row_begin, row_end)))

    def _add_row(self, row: tuple[int, int, int, int, int]) -> None:
        """Append a move, or lengthen the last one when it continues it: keys travel once."""
        if self._rows and self._rows[-1][:3] == row[:3] and self._rows[-1][3] == row[4]:
            last = self._rows.pop()
            self._loads[row[1]] -= self._ticks(*last[3:])
            row = (*row[:4], last[4])
        self._loads[row[1]] += self._ticks(*row[3:])
        self._rows.append(row)

    def _best_piece(self, kept: Int64, room: int) -> tuple[int, int] | None:
        """Return (document, first row) of the tail to give, or None if none helps."""
        if room <= 0 or not len(kept):
            return None
        row_begin = self._cut_rows(kept, room)
        ticks = self._cost.ticks(tile_features(row_begin, kept))
        # A piece that overshoots by as much as the room is no gain.
        useful = (ticks > 0) & (ticks < 2 * room)
        if not useful.any():
            return None
        filling = useful & (ticks >= room // 4)
        if not filling.any():
            best = int(np.argmax(np.where(useful, ticks, -1)))
        else:
            query_heads = self._settings.query_heads_per_kv_head
            travelling = 2 * query_heads * (kept - row_begin) + 2 * kept
            density = np.where(filling, ticks / np.maximum(travelling, 1), -1.0)
            best = int(np.argmax(density))
        return best, int(row_begin[best])

    def _cut_rows(self, kept: Int64, room: int) -> Int64:
        """Return per document the block-aligned first row of the tail closest to ``room``."""
        block = self._settings.block_rows
        low = np.zeros_like(kept)
        high = -(-kept // block)
        # Smallest block index whose tail costs at most the room; tails shrink as it grows.
        for _ in range(int(high.max()).bit_length()):
            middle = (low + high) // 2
            fits = self._tail_ticks(middle * block, kept) <= room
            high = np.where(fits, middle, high)
            low = np.where(fits, low, middle + 1)
            low = np.minimum(low, high)
        under = np.minimum(high * block, kept)
        over = np.maximum(under - 1, 0) // block * block
        overshoot = self._tail_ticks(over, kept) - room
        undershoot = room - self._tail_ticks(under, kept)
        return np.where(overshoot < undershoot, over, under)

    def _tail_ticks(self, row_begin: Int64, kept: Int64) -> Int64:
        return self._cost.ticks(tile_features(np.minimum(row_begin, kept), kept))
