"""Placements to start from: every sequence has a slot, and cells are roughly even.

Shapes: N sequences; M cells of up to P slots. A slot that a cell lacks holds index N.
"""

from heapq import heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_MOST_HEAPS = 8


def longest_first(costs: Int64, sizes: Int64, weights: Int64) -> Int64:
    """Give each sequence, in falling order, to the cell that is lightest with it: [M, P].

    Only cells with a free slot are asked (as in Libra, arXiv 2607.23250).
    """
    # The least weight first: of empty cells the one that bears most is lightest with any.
    ranked = np.argsort(weights, kind="stable")
    slots, weight = sizes[ranked].tolist(), weights[ranked].tolist()
    members: list[list[int]] = [[] for _ in slots]
    # One integer for time and cell: several times as fast as a tuple.
    bits = len(slots).bit_length()
    cell_of = (1 << bits) - 1
    heaps = _heaps(weight)
    order = np.argsort(-costs, kind="stable")
    for sequence, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        heap = heaps[0]
        if len(heaps) > 1:
            heap = min(
                filter(None, heaps),
                key=lambda own: (own[0] >> bits) + cost * weight[own[0] & cell_of],
            )
        cell = heap[0] & cell_of
        own = members[cell]
        own.append(sequence)
        if len(own) < slots[cell]:
            heapreplace(heap, heap[0] + (cost * weight[cell] << bits))
        else:
            heappop(heap)
    cells = np.full((len(slots), max(slots)), len(costs), dtype=np.int64)
    cells[np.arange(max(slots)) < sizes[ranked, None]] = np.concatenate(members)
    return cells[np.argsort(ranked)]


def _heaps(weights: list[int]) -> list[list[int]]:
    """Return the cells in a heap for each weight.

    In such a heap the lightest before is so after. Of many weights there are too many heaps to
    ask them all: then one has all cells, and gives the lightest before.
    """
    different = sorted(set(weights))
    if len(different) > _MOST_HEAPS:
        return [list(range(len(weights)))]
    return [[cell for cell, own in enumerate(weights) if own == each] for each in different]


def level_by_level(costs: Int64, cells: int) -> Int64:
    """Deal the sequences in P rounds, each round's longest to the lightest cell: [M, P].

    Evens cells of one size sooner than longest-first where no sequence rules its cell.
    """
    levels = np.argsort(-costs, kind="stable").reshape(-1, cells)
    dealt = np.empty_like(levels)
    loads = np.zeros(cells, dtype=np.int64)
    for level, sequences in enumerate(levels):
        lightest_first = np.argsort(loads, kind="stable")
        dealt[level, lightest_first] = sequences
        loads[lightest_first] += costs[sequences]
    return np.ascontiguousarray(dealt.T)
