"""What the ranks of a step's cells send, and how even their attention ends up, by the planner.

Shapes: P sequences of a cell; R ranks of a plane over all cells of a step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.lengths import Int64
from benchmarks.plans import sent_vectors, ulysses_vectors
from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.plan import PlanSettings, plan_cell

_HEADS = HeadSplit(query_heads=32, kv_heads=8, cp=8)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One step's exchange.

    Attributes:
        mean, busiest: bytes that a rank sends to others, over those that Ulysses itself sends.
        rank_imbalance: slowest rank's attention over the mean of all ranks, less one.
    """

    mean: float
    busiest: float
    rank_imbalance: float


def measure_exchange(
    cells: Iterable[list[Int64]], tokens: int, *, pooling: bool = True
) -> Exchange:
    """Plan the cells of a step as training does, 32 query and 8 kv heads over CP groups of 8.

    Args:
        cells: of each, the documents' lengths of its P sequences.
        tokens: of a sequence.
        pooling: off where tiles stay at home.
    """
    settings = PlanSettings(pooling=pooling)
    plans = [plan_cell(cell, _HEADS, FLOPS_COST, settings) for cell in cells]
    sent = np.concatenate([sent_vectors(plan) for plan in plans]) / ulysses_vectors(_HEADS, tokens)
    loads = np.concatenate([plan.load_ticks for plan in plans])
    return Exchange(
        mean=float(sent.mean()),
        busiest=float(sent.max()),
        rank_imbalance=float(loads.max() / loads.mean()) - 1.0 if loads.any() else 0.0,
    )
