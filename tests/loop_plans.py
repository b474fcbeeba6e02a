"""What ranks compute in a step under a policy: placed and planned as training does it.

Shapes: N = dp sequences; W = dp C ranks; n kernel calls; F = 6 features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import NUM_FEATURES, tile_features
from libra.attention.heads import HeadSplit
from libra.attention.plan import Plan, PlanSettings, plan_cell
from libra.attention.shape import PoolShape
from libra.attention.tiles import Tiles
from libra.balancer.policy import Policy
from libra.balancer.step_placement import StepPlacement, place_in_order, place_step
from tests.loop_world import KV_HEADS, QUERY_HEADS, Int64

Float64 = NDArray[np.float64]

_BYTES_PER_VECTOR = 2 * 64


@dataclass(frozen=True, kw_only=True)
class Work:
    """One step's kernel calls, and what plain Ulysses would have had ranks compute.

    Attributes:
        rank: [n] who makes the call, ascending; ``features``: [n, F] summed over its tiles.
        home: [W, F] of one kv head, under plain Ulysses.
        sent_bytes: [W].
        cell: [W] ranks of the same number wait for each other in an exchange; -1 where nothing
            moves.
    """

    rank: Int64
    features: Float64
    home: Float64
    sent_bytes: Int64
    cell: Int64

    @property
    def ranks(self) -> int:
        """W."""
        return len(self.home)

    def by_rank(self, values: Float64) -> Float64:
        """Sum values [n] of calls over each rank: [W]."""
        sums = np.bincount(self.rank, weights=values, minlength=self.ranks)
        return np.asarray(sums, dtype=np.float64)


def plan_step(
    lengths: Sequence[Int64], shape: PoolShape, policy: Policy, *, by_tile: bool = True
) -> Work:
    """Return the work of a step's N sequences under a policy."""
    heads = HeadSplit(query_heads=QUERY_HEADS, kv_heads=KV_HEADS, cp=shape.cp)
    speeds = policy.speeds_permille
    if len(speeds) != shape.dp * shape.cp:
        speeds = ()
    placement = _place(lengths, shape, policy, speeds)
    settings = PlanSettings(
        pooling=placement.pooling,
        tolerance_permille=policy.tolerance_permille,
        min_gain_permille=policy.min_gain_permille,
    )
    step = _Step(shape.dp * shape.cp, by_tile)
    for first, members in _cells(placement, lengths):
        plan = None
        for cp_rank in range(shape.cp):
            ranks = [(first + own) * shape.cp + cp_rank for own in range(len(members))]
            own_speeds = [speeds[rank] for rank in ranks] if speeds else []
            # Without speeds all planes are alike.
            if plan is None or speeds:
                plan = plan_cell(
                    members,
                    heads,
                    policy.tile_cost,
                    settings,
                    cp_rank=cp_rank,
                    speeds_permille=own_speeds,
                )
            step.add(plan, ranks)
    return step.work()


def _place(
    lengths: Sequence[Int64], shape: PoolShape, policy: Policy, speeds: Sequence[int]
) -> StepPlacement:
    if not policy.pooling:
        return place_in_order(len(lengths), shape)
    costs = [int(policy.tile_cost.price(0, own).sum()) for own in lengths]
    return place_step(
        costs, shape, speeds_permille=speeds, tolerance_permille=policy.tolerance_permille
    )


def _cells(placement: StepPlacement, lengths: Sequence[Int64]) -> list[tuple[int, list[Int64]]]:
    """Return each cell's first CP group and the sequences that it holds."""
    cells, first = [], 0
    for size in placement.sizes[0]:
        slots = placement.slots[0, first : first + size].tolist()
        cells.append((first, [lengths[slot] for slot in slots]))
        first += size
    return cells


class _Step:
    """Tiles of a step, gathered plan by plan; rows are (rank, call, row begin, row end, kv)."""

    def __init__(self, ranks: int, by_tile: bool) -> None:
        self._by_tile = by_tile
        self._rows: list[Int64] = []
        self._home = np.zeros((ranks, NUM_FEATURES))
        self._sent = np.zeros(ranks, dtype=np.int64)
        self._cell = np.full(ranks, -1, dtype=np.int64)

    def add(self, plan: Plan, ranks: Sequence[int]) -> None:
        for own, rank in enumerate(ranks):
            self._note(rank, 0, plan.kept(own))
            self._home[rank] = tile_features(0, plan.lengths[plan.sequence(own)]).sum(axis=0)
        moves = plan.moves
        if not len(moves):
            return
        self._cell[list(ranks)] = ranks[0]
        for own, rank in enumerate(ranks):
            for wave in np.unique(moves.wave[moves.target == own]).tolist():
                self._note(
                    rank, 1 + wave, moves.tiles[(moves.target == own) & (moves.wave == wave)]
                )
            sent = moves.tiles[moves.source == own]
            vectors = 2 * sent.query_vectors.sum() + 2 * sent.key_vectors.sum()
            self._sent[rank] += _BYTES_PER_VECTOR * vectors

    def work(self) -> Work:
        rows = np.concatenate(self._rows, axis=1)
        rows = rows[:, np.lexsort((rows[1], rows[0]))]
        rank, call, begin, end, kv_heads = rows
        features = (tile_features(begin, end) * kv_heads[:, None]).astype(np.float64)
        if not self._by_tile:
            new = np.flatnonzero(np.diff(rank, prepend=-1) | np.diff(call, prepend=-1))
            features, rank = np.add.reduceat(features, new), rank[new]
        return Work(
            rank=rank, features=features, home=self._home, sent_bytes=self._sent, cell=self._cell
        )

    def _note(self, rank: int, call: int, tiles: Tiles) -> None:
        fixed = np.broadcast_to(np.array([[rank], [call]]), (2, len(tiles)))
        own = np.stack((tiles.row_begin, tiles.row_end, tiles.kv_heads))
        self._rows.append(np.concatenate((fixed, own)))
