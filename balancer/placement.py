"""Place the packed sequences of one optimizer step into cells of equal size and even cost.

A cell is one (micro-batch, pool). Longest first into the lightest cell that still has a free
slot, then swaps of pairs out of the heaviest cell. Every rank places by itself and must come to
the same answer: costs are integers, sorts are stable, and swaps are counted, never timed.

Shapes: N sequences; M cells of P slots, N = M P.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Which sequences share a cell.

    Attributes:
        cells: [M, P] indices of sequences; heaviest cell first, each cell in rising order.
        loads: [M] cost of each cell.
        bound: no placement's heaviest cell can cost less.
    """

    cells: Int64
    loads: Int64
    bound: int

    @property
    def imbalance(self) -> float:
        """Heaviest cell over the mean cell, less one."""
        return float(self.loads.max() / max(1.0, self.loads.mean())) - 1.0


def place(costs: ArrayLike, num_cells: int, *, max_swaps: int = 256) -> Placement:
    """Return an even placement of N sequences into ``num_cells`` cells of N / M each.

    Args:
        costs: [N] non-negative integers.
        num_cells: M, must divide N.
        max_swaps: swaps tried after longest-first.

    Raises:
        ValueError: costs are not non-negative integers, or M does not divide N.
    """
    own = np.asarray(costs)
    if own.ndim != 1 or not len(own) or not np.issubdtype(own.dtype, np.integer) or own.min() < 0:
        raise ValueError("costs: must be a non-empty list of non-negative integers")
    own = own.astype(np.int64)
    if num_cells < 1 or len(own) % num_cells:
        raise ValueError(f"num_cells={num_cells}: must divide the {len(own)} sequences of a step")
    bound = lower_bound(own, num_cells)
    cells = _longest_first(own, num_cells)
    _swap(cells, own, bound, max_swaps)
    loads = own[cells].sum(axis=1)
    heaviest_first = np.argsort(-loads, kind="stable")
    return Placement(
        cells=np.sort(cells, axis=1)[heaviest_first], loads=loads[heaviest_first], bound=bound
    )


def lower_bound(costs: Int64, num_cells: int) -> int:
    """Return the larger of the mean cell, and the largest sequence with the P - 1 smallest."""
    slots = len(costs) // num_cells
    total = int(costs.sum())
    smallest = np.partition(costs, slots - 1)[:slots] if slots < len(costs) else np.sort(costs)
    with_largest = int(costs.max()) + int(np.sort(smallest)[: slots - 1].sum())
    return max(-(-total // num_cells), with_largest)


def _longest_first(costs: Int64, num_cells: int) -> Int64:
    """Give each sequence, in falling order, to the lightest cell with a free slot: [M, P]."""
    slots = len(costs) // num_cells
    cells = np.empty((num_cells, slots), dtype=np.int64)
    filled = [0] * num_cells
    lightest = [(0, cell) for cell in range(num_cells)]
    heapify(lightest)
    order = np.argsort(-costs, kind="stable")
    for sequence, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        load, cell = heappop(lightest)
        cells[cell, filled[cell]] = sequence
        filled[cell] += 1
        if filled[cell] < slots:
            heappush(lightest, (load + cost, cell))
    return cells


def _swap(cells: Int64, costs: Int64, bound: int, max_swaps: int) -> None:
    """Swap pairs out of the heaviest cell, in place, while that lowers its maximum."""
    loads = costs[cells].sum(axis=1)
    for _ in range(max_swaps):
        heavy = int(np.argmax(loads))
        # A thousandth above the bound is as even as measured costs are true.
        if (int(loads[heavy]) - bound) * 1000 <= bound:
            return
        # [P, M, P]: what the heavy cell loses by each swap with each slot of each cell.
        lost = costs[cells[heavy]][:, None, None] - costs[cells][None]
        worst = np.maximum(loads[heavy] - lost, loads[None, :, None] + lost)
        worst[:, heavy] = loads[heavy]
        slot, cell, other = np.unravel_index(int(np.argmin(worst)), worst.shape)
        if worst[slot, cell, other] >= loads[heavy]:
            return
        gain = lost[slot, cell, other]
        loads[heavy] -= gain
        loads[cell] += gain
        cells[heavy, slot], cells[cell, other] = cells[cell, other], cells[heavy, slot]
