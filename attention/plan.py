"""Plan a cell: from plain Ulysses, move only the surplus of overloaded ranks to those with room.

After Ulysses' head split the ranks of a CP group carry equal work where C divides the query
heads; a cell then has only P bins to even out, and one plan serves every plane. Where it does
not, the same search works on all P C ranks of the pool. Each rank makes the plan by itself, so
everything here is integer and deterministic. Pure numpy.

Shapes: P sequences; S_p documents in sequence p; B bins, P or P C of them, sequence by sequence;
n moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from libra.attention.cost import TileCost
from libra.attention.heads import HeadRun, HeadSplit
from libra.attention.piece import Items
from libra.attention.surplus import Limits, SurplusSearch
from libra.attention.tiles import Int64, Tiles
from libra.attention.waves import Moves, make_moves

NOMINAL_SPEED = 1000
TOLERANCE_PERMILLE = 8
# A cell that stays home with the tolerance left to gain is then within 2 % of even.
MIN_GAIN_PERMILLE = 10

# Why a plan is no more even than it is.
Limit = Literal["tolerance", "pooling", "gain", "memory", "granularity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """How a cell is planned.

    Attributes:
        pooling: off leaves every tile at home.
        tolerance_permille: stop when the slowest bin is this close to the mean.
        min_gain_permille: stay home when the slowest bin would gain less.
        block_rows: cuts fall on multiples of this, the kernels' own block.
        memory_permille: queries and keys that a rank may hold, over those of its pool's longest
            sequence under plain Ulysses; 1000 lets it receive nothing beyond them.
        waves: exchanges that what moves is divided among, to overlap with the kernels.
    """

    pooling: bool = True
    tolerance_permille: int = TOLERANCE_PERMILLE
    min_gain_permille: int = MIN_GAIN_PERMILLE
    block_rows: int = 128
    memory_permille: int = 2000
    waves: int = 2

    def __post_init__(self) -> None:
        for name in ("tolerance_permille", "min_gain_permille"):
            value = getattr(self, name)
            if not 0 <= value <= 1000:
                raise ValueError(f"{name}={value}: must be in 0..1000")
        if self.block_rows < 1:
            raise ValueError(f"block_rows={self.block_rows}: must be at least 1")
        if self.memory_permille < 1000:
            raise ValueError(f"memory_permille={self.memory_permille}: must be at least 1000")
        if not 1 <= self.waves <= 16:
            raise ValueError(f"waves={self.waves}: must be in 1..16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole cell's plan.

    Attributes:
        lengths: P arrays [S_p] of document lengths.
        runs: heads of a sequence's bins: one for planes, C for ranks.
        moves: what is computed elsewhere.
        cut: what is left at home of bins that gave something, by bin.
        load_ticks: [B] predicted cost of each bin at nominal speed: ticks of one kv head's group
            times query heads.
        home_ticks: [B] the same under plain Ulysses.
        limit: what kept the plan from being more even.
    """

    lengths: tuple[Int64, ...]
    runs: tuple[tuple[HeadRun, ...], ...]
    moves: Moves
    cut: Mapping[int, Items]
    load_ticks: Int64
    home_ticks: Int64
    limit: Limit

    @property
    def bins(self) -> int:
        """B."""
        return len(self.lengths) * len(self.runs)

    def sequence(self, own: int) -> int:
        """Return the sequence that a bin holds at home."""
        return own // len(self.runs)

    def home(self, own: int) -> Tiles:
        """Return the tiles of a bin under plain Ulysses."""
        return Tiles.whole(self.lengths[self.sequence(own)], self.runs[own % len(self.runs)])

    def kept(self, own: int) -> Tiles:
        """Return the tiles of a bin's own sequence that it computes itself, by document."""
        if own not in self.cut:
            return self.home(own)
        tiles = self.cut[own].left()
        return tiles[np.lexsort((tiles.head_begin, tiles.document))]


def plan_cell(
    lengths: Sequence[Int64],
    heads: HeadSplit,
    cost: TileCost,
    settings: PlanSettings,
    *,
    cp_rank: int = 0,
    speeds_permille: Sequence[int] = (),
    nodes: Sequence[int] = (),
) -> Plan:
    """Return the plan of a cell of P packed sequences.

    Args:
        lengths: P arrays [S_p] of positive document lengths.
        heads: how heads are split; decides whether bins are sequences or ranks.
        cost: the price of a tile.
        settings: how far to go.
        cp_rank: whose plane to plan where bins are sequences.
        speeds_permille: speed of each bin, 1000 is nominal; empty when all are equal.
        nodes: node of each bin; empty when all share one.

    Raises:
        ValueError: a length is not positive, or speeds or nodes are not one for each bin.
    """
    home = home_plan(lengths, heads, cost, cp_rank=cp_rank)
    return balanced_plan(home, cost, settings, speeds_permille=speeds_permille, nodes=nodes)


def balanced_plan(
    home: Plan,
    cost: TileCost,
    settings: PlanSettings,
    *,
    speeds_permille: Sequence[int] = (),
    nodes: Sequence[int] = (),
) -> Plan:
    """Return the plan that ``settings`` ask for, from plain Ulysses' at the same cost."""
    bins = home.bins
    speeds = _one_each("speeds_permille", speeds_permille, bins, NOMINAL_SPEED, least=1)
    own_nodes = _one_each("nodes", nodes, bins, 0, least=0)
    if not settings.pooling or bins < 2 or not home.home_ticks.any():
        return home
    limits = Limits(
        tolerance_permille=settings.tolerance_permille,
        block_rows=settings.block_rows,
        spare_vectors=_spare_vectors(home, settings.memory_permille),
        nodes=own_nodes,
    )
    search = SurplusSearch(home.home, home.home_ticks, cost, limits, speeds)
    search.run()
    balanced = _searched(home, search, speeds, settings, cost)
    before, after = (_slowest(plan.load_ticks, speeds) for plan in (home, balanced))
    if (before - after) * 1000 > settings.min_gain_permille * before:
        return balanced
    return replace(home, limit=balanced.limit if balanced.limit == "memory" else "gain")


def home_plan(
    lengths: Sequence[Int64], heads: HeadSplit, cost: TileCost, *, cp_rank: int = 0
) -> Plan:
    """Return plain Ulysses as a plan: nothing moves.

    Raises:
        ValueError: a length is not positive.
    """
    own = tuple(np.ascontiguousarray(part, dtype=np.int64) for part in lengths)
    every = np.concatenate(own) if own else np.zeros(0, dtype=np.int64)
    if len(every) and every.min() < 1:
        raise ValueError(f"lengths: {int(every.min())} is not a document length, at least 1")
    ranks = [cp_rank] if heads.even else range(heads.cp)
    query_heads = np.array([np.diff(heads.query_range(rank))[0] for rank in ranks])
    ends = np.cumsum([0, *(len(part) for part in own)])
    spent = np.concatenate(([0], np.cumsum(cost.price(0, every))))[ends]
    ticks = np.outer(np.diff(spent), query_heads).reshape(-1)
    return Plan(
        lengths=own,
        runs=tuple(heads.runs(rank) for rank in ranks),
        moves=make_moves([], 1, cost),
        cut={},
        load_ticks=ticks,
        home_ticks=ticks,
        limit="pooling",
    )


def _searched(
    home: Plan,
    search: SurplusSearch,
    speeds: Sequence[int],
    settings: PlanSettings,
    cost: TileCost,
) -> Plan:
    loads = np.array(search.loads, dtype=np.int64)
    # Compared as products: a quotient of integers would round.
    fair = int(loads.sum()) * (1000 + settings.tolerance_permille)
    above = any(
        load * 1000 * sum(speeds) > fair * speed
        for load, speed in zip(search.loads, speeds, strict=True)
    )
    limit: Limit = "tolerance"
    if above:
        limit = "memory" if search.out_of_memory else "granularity"
    return Plan(
        lengths=home.lengths,
        runs=home.runs,
        moves=make_moves(search.moved, settings.waves, cost),
        cut=search.items,
        load_ticks=loads,
        home_ticks=home.home_ticks,
        limit=limit,
    )


def _spare_vectors(home: Plan, memory_permille: int) -> list[int]:
    """Return what each bin may receive: its own queries and keys, less the cap's."""
    heads = [
        sum(run.head_end - run.head_begin + run.kv_end - run.kv_begin for run in runs)
        for runs in home.runs
    ]
    own = [int(part.sum()) * count for part in home.lengths for count in heads]
    return [max(own) * memory_permille // 1000 - held for held in own]


def _slowest(load_ticks: Int64, speeds: Sequence[int]) -> int:
    return max(
        int(load) * NOMINAL_SPEED // speed for load, speed in zip(load_ticks, speeds, strict=True)
    )


def _one_each(
    name: str, values: Sequence[int], bins: int, default: int, *, least: int
) -> list[int]:
    own = list(values) or [default] * bins
    if len(own) != bins or min(own) < least:
        raise ValueError(f"{name}={own}: must be {bins} integers of at least {least}")
    return own
