"""Place the packed sequences of one optimizer step into cells of even cost.

A cell is one (micro-batch, pool). Longest first into the cell that stays lightest and still has a
free slot, then swaps of pairs out of the heaviest cell. Every rank places by itself and must come
to the same answer: costs are integers, sorts are stable, and swaps are counted, never timed.

A pool of fewer CP groups has fewer ranks to share a cell's cost, and one slot for each group. What
is evened is therefore cost per slot, kept an integer by weights: a cell's cost times L / size, for
L the least common multiple of all sizes. Between cells of one size the weights are 1.

Shapes: N sequences; M cells of up to P slots, N slots in all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Which sequences share a cell.

    Attributes:
        cells: [M, P] indices of sequences, each cell in rising order, then -1 where it has fewer
            slots than P; among cells of one size the heaviest comes first.
        loads: [M] cost of each cell.
        weights: [M] L / size of each cell, by which loads of cells of unequal sizes compare.
        bound: no placement's heaviest cell can have less load times weight.
    """

    cells: Int64
    loads: Int64
    weights: Int64
    bound: int

    @property
    def order(self) -> Int64:
        """The sequences, cell after cell: [N]."""
        return self.cells[self.cells >= 0]

    @property
    def imbalance(self) -> float:
        """Heaviest cell's cost per slot over the mean of all slots, less one."""
        slots = (self.cells >= 0).sum(axis=1)
        mean = self.loads.sum() / slots.sum()
        return float((self.loads / slots).max() / max(1.0 / slots.max(), mean)) - 1.0


def place(costs: ArrayLike, cells: int | Sequence[int], *, max_swaps: int = 256) -> Placement:
    """Return an even placement of N sequences into cells.

    Args:
        costs: [N] non-negative integers.
        cells: size of each cell, N in all; or M, for cells of N / M each.
        max_swaps: swaps tried after longest-first.

    Raises:
        ValueError: costs are not non-negative integers or too large, or cells do not hold them.
    """
    own = np.asarray(costs)
    if own.ndim != 1 or not len(own) or not np.issubdtype(own.dtype, np.integer) or own.min() < 0:
        raise ValueError("costs: must be a non-empty list of non-negative integers")
    own = own.astype(np.int64)
    sizes = _sizes(cells, len(own))
    weights = math.lcm(*sizes.tolist()) // sizes
    if sum(own.tolist()) * int(weights.max()) >= 2**63:
        raise ValueError(f"costs: must sum to less than {2**63 // int(weights.max())}")
    bound = lower_bound(own, cells)
    # Slots that a cell lacks hold one more sequence, which costs nothing.
    padded = np.append(own, 0)
    filled = _longest_first(own, sizes, weights)
    _swap(filled, padded, weights, bound, max_swaps)
    filled = _heaviest_first(np.sort(filled, axis=1), padded, sizes)
    return Placement(
        cells=np.where(filled < len(own), filled, -1),
        loads=padded[filled].sum(axis=1),
        weights=weights,
        bound=bound,
    )


def lower_bound(costs: Int64, cells: int | Sequence[int]) -> int:
    """Return what load times weight the heaviest cell has at least, in any placement.

    That is the larger of the mean over slots, times L, and of the largest sequence with the
    smallest others, in cells of the size that bears them best.
    """
    sizes = _sizes(cells, len(costs))
    common = math.lcm(*sizes.tolist())
    mean = -(-sum(costs.tolist()) * common // len(costs))
    smallest, largest = np.sort(costs)[:-1], int(costs.max())
    with_largest = min(
        (largest + int(smallest[: size - 1].sum())) * (common // size)
        for size in set(sizes.tolist())
    )
    return int(max(mean, with_largest))


def _sizes(cells: int | Sequence[int], num_sequences: int) -> Int64:
    """Return [M] slots of each cell."""
    if isinstance(cells, int):
        if cells < 1 or num_sequences % cells:
            raise ValueError(f"cells={cells}: must divide the {num_sequences} sequences of a step")
        return np.full(cells, num_sequences // cells, dtype=np.int64)
    sizes = np.array(cells, dtype=np.int64)
    if not len(sizes) or sizes.min() < 1 or sizes.sum() != num_sequences:
        raise ValueError(
            f"cells={list(cells)}: must be at least 1 each and sum to {num_sequences} sequences"
        )
    return sizes


def _longest_first(costs: Int64, sizes: Int64, weights: Int64) -> Int64:
    """Give each sequence, in falling order, to the cell that is lightest with it: [M, P]."""
    cells = np.full((len(sizes), int(sizes.max())), len(costs), dtype=np.int64)
    slots, weight = sizes.tolist(), weights.tolist()
    filled = [0] * len(slots)
    # One heap for each size, the largest first: within it the lightest before is so after.
    lightest = [
        [(0, cell) for cell, size in enumerate(slots) if size == each]
        for each in sorted(set(slots), reverse=True)
    ]
    order = np.argsort(-costs, kind="stable")
    for sequence, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        heap = _lightest_with(cost, lightest, weight) if len(lightest) > 1 else lightest[0]
        load, cell = heappop(heap)
        cells[cell, filled[cell]] = sequence
        filled[cell] += 1
        if filled[cell] < slots[cell]:
            heappush(heap, (load + cost, cell))
    return cells


def _lightest_with(
    cost: int, heaps: list[list[tuple[int, int]]], weight: list[int]
) -> list[tuple[int, int]]:
    """Return the heap whose first (load, cell) is lightest with ``cost`` added."""
    return min(filter(None, heaps), key=lambda heap: (heap[0][0] + cost) * weight[heap[0][1]])


def _swap(cells: Int64, costs: Int64, weights: Int64, bound: int, max_swaps: int) -> None:
    """Swap pairs out of the heaviest cell, in place, while that lowers its maximum."""
    loads = costs[cells].sum(axis=1)
    missing = cells == len(costs) - 1
    uneven = bool(missing.any())
    for _ in range(max_swaps):
        heavy = int(np.argmax(loads * weights))
        highest = int(loads[heavy] * weights[heavy])
        # A thousandth above the bound is as even as measured costs are true.
        if (highest - bound) * 1000 <= bound:
            return
        # [P, M, P]: what the heavy cell loses by each swap with each slot of each cell.
        lost = costs[cells[heavy]][:, None, None] - costs[cells][None]
        left, grown = loads[heavy] - lost, loads[None, :, None] + lost
        if uneven:
            left *= weights[heavy]
            grown *= weights[None, :, None]
        worst = np.maximum(left, grown, out=left)
        worst[:, heavy] = highest
        if uneven:
            worst[missing[heavy]] = highest
            worst[:, missing] = highest
        slot, cell, other = np.unravel_index(int(np.argmin(worst)), worst.shape)
        if worst[slot, cell, other] >= highest:
            return
        gain = lost[slot, cell, other]
        loads[heavy] -= gain
        loads[cell] += gain
        cells[heavy, slot], cells[cell, other] = cells[cell, other], cells[heavy, slot]


def _heaviest_first(cells: Int64, costs: Int64, sizes: Int64) -> Int64:
    """Return the cells with those of one size, wherever they stand, in falling order of load."""
    loads = costs[cells].sum(axis=1)
    ordered = np.empty_like(cells)
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        ordered[alike] = cells[alike[np.argsort(-loads[alike], kind="stable")]]
    return ordered
