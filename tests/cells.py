"""Cells, heads and settings of every kind that a planner may meet, for property tests."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from libra.attention.cost import FLOPS_COST, TileCost
from libra.attention.heads import HeadSplit
from libra.attention.plan import Plan, PlanSettings, plan_cell
from libra.attention.tiles import Tiles

MEASURED_COST = TileCost.from_seconds((2e-5, 1e-7, 1e-7, 1e-9, 1e-6, 5e-8))


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that a plan is made from."""

    lengths: tuple[tuple[int, ...], ...]
    heads: HeadSplit
    cp_rank: int
    cost: TileCost
    settings: PlanSettings
    speeds: tuple[int, ...]
    nodes: tuple[int, ...]

    def plan(self) -> Plan:
        return plan_cell(
            [np.array(part, dtype=np.int64) for part in self.lengths],
            self.heads,
            self.cost,
            self.settings,
            cp_rank=self.cp_rank,
            speeds_permille=self.speeds,
            nodes=self.nodes,
        )


_heads = st.builds(
    lambda kv, group, cp: HeadSplit(query_heads=kv * group, kv_heads=kv, cp=cp),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([1, 2, 4, 5]),
    st.integers(1, 5),
)
_settings = st.builds(
    PlanSettings,
    block_rows=st.sampled_from([1, 16, 64]),
    min_gain_permille=st.sampled_from([0, 20]),
    memory_permille=st.sampled_from([1000, 1200, 1500, 9000]),
    waves=st.integers(1, 3),
)
_lengths = st.lists(
    st.lists(
        st.one_of(st.integers(1, 8), st.integers(1, 400), st.integers(1, 4000)), max_size=12
    ).map(tuple),
    min_size=1,
    max_size=6,
).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any lengths, heads, costs, settings, and half of the time any speeds and nodes."""
    lengths, heads = draw(_lengths), draw(_heads)
    bins = len(lengths) * (1 if heads.even else heads.cp)
    some = st.just(())
    return Case(
        lengths=lengths,
        heads=heads,
        cp_rank=draw(st.integers(0, heads.cp - 1)),
        cost=draw(st.sampled_from([FLOPS_COST, MEASURED_COST])),
        settings=draw(_settings),
        speeds=draw(st.one_of(some, st.tuples(*[st.integers(500, 1500)] * bins))),
        nodes=draw(st.one_of(some, st.tuples(*[st.integers(0, 2)] * bins))),
    )


def covered(plan: Plan, own: int) -> list[np.ndarray]:
    """Count how often each (row, query head) of a bin's documents is computed, anywhere."""
    runs = plan.runs[own % len(plan.runs)]
    heads = runs[-1].head_end if runs else 0
    counts = [np.zeros((length, heads), dtype=int) for length in plan.lengths[plan.sequence(own)]]
    moved = plan.moves.tiles[plan.moves.source == own]
    for tile in rows_of(Tiles.concatenate([plan.kept(own), moved])):
        document, head_begin, head_end, row_begin, row_end = tile
        counts[document][row_begin:row_end, head_begin:head_end] += 1
    return counts


def rows_of(tiles: Tiles) -> list[tuple[int, ...]]:
    """Return (document, head_begin, head_end, row_begin, row_end) of each tile."""
    columns = (tiles.document, tiles.head_begin, tiles.head_end, tiles.row_begin, tiles.row_end)
    return list(zip(*(column.tolist() for column in columns), strict=True))
