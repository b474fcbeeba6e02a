"""Other ways to place whole sequences into cells of equal count, written from their descriptions.

They get the same costs as Libra's placement and know nothing of it. WLB-LLM and Megatron's dynamic
CP work on documents: ``wlb_packing.py`` and ``dynamic_cp.py``.

Shapes: N sequences; M cells of P sequences each.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from benchmarks.lengths import Int64

Float64 = NDArray[np.float64]


def random_cells(costs: Int64, cells: int, rng: np.random.Generator) -> Int64:
    """Return [M, P]: any sequences together, as where nothing is balanced."""
    return rng.permutation(len(costs)).reshape(cells, _slots(costs, cells))


def token_balanced(tokens: Int64, cells: int) -> Int64:
    """Return [M, P]: cells of equal tokens, whatever attention costs.

    Packers that know tokens alone do this; where all sequences have equally many, any cells will
    do, and it is no better than random.
    """
    return longest_first(tokens, cells)


def longest_first(costs: Int64, cells: int) -> Int64:
    """Return [M, P]: longest first, into the lightest cell that has fewer than P.

    Libra's variance-reduced placement as its paper (arXiv 2607.23250) describes it, no swaps.
    """
    slots = _slots(costs, cells)
    members: list[list[int]] = [[] for _ in range(cells)]
    lightest = [(0, cell) for cell in range(cells)]
    order = np.argsort(-costs, kind="stable")
    for own, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        load, cell = heapq.heappop(lightest)
        members[cell].append(own)
        if len(members[cell]) < slots:
            heapq.heappush(lightest, (load + cost, cell))
    return np.array(members, dtype=np.int64)


def karmarkar_karp(costs: Int64, cells: int) -> Int64:
    """Return [M, P]: the differencing method with equal counts, as RL trainers use it.

    Karmarkar and Karp's largest differencing, kept to equal counts by starting from tuples of M
    sequences of neighbouring cost, one for each cell (balanced differencing; Michiels, Korst and
    Aarts). The two most uneven tuples are joined, the heaviest of one with the lightest of the
    other, until one is left.
    """
    slots = _slots(costs, cells)
    rows = np.argsort(-costs, kind="stable").reshape(slots, cells)
    tuples: list[tuple[int, int, Int64, Int64]] = []
    for number, row in enumerate(rows):
        _push(tuples, number, costs[row], row[:, None])
    for number in range(slots, 2 * slots - 1):
        _, _, loads, members = heapq.heappop(tuples)
        _, _, others, joined = heapq.heappop(tuples)
        heavy, light = np.argsort(-loads, kind="stable"), np.argsort(others, kind="stable")
        both = np.concatenate((members[heavy], joined[light]), axis=1)
        _push(tuples, number, loads[heavy] + others[light], both)
    return tuples[0][3]


def swapped(start: Int64, costs: Int64, max_swaps: int) -> Int64:
    """Return [M, P]: ``start`` after at most so many swaps of pairs.

    Each is the swap between the heaviest cell and any other that leaves the heavier of the two
    lightest; it ends where none helps, or within a thousandth of the bound.
    """
    cells, loads = start.copy(), costs[start].sum(axis=1)
    bound = least_load(costs, len(cells))
    for _ in range(max_swaps):
        heavy = int(np.argmax(loads))
        if (int(loads[heavy]) - bound) * 1000 <= bound:
            break
        # [P, M, P]: what the heaviest cell loses by each swap.
        lost = costs[cells[heavy]][:, None, None] - costs[cells][None]
        worst = np.maximum(loads[heavy] - lost, loads[None, :, None] + lost)
        worst[:, heavy] = loads[heavy]
        slot, cell, other = np.unravel_index(int(np.argmin(worst)), worst.shape)
        if worst[slot, cell, other] >= loads[heavy]:
            break
        loads[heavy] -= lost[slot, cell, other]
        loads[cell] += lost[slot, cell, other]
        cells[heavy, slot], cells[cell, other] = cells[cell, other], cells[heavy, slot]
    return cells


def least_load(costs: Int64, cells: int) -> int:
    """Return what the heaviest of M cells of equal count costs at least.

    The mean, rounded up, or the largest sequence and the P - 1 smallest.
    """
    slots, ordered = _slots(costs, cells), np.sort(costs)
    return max(-(-int(costs.sum()) // cells), int(ordered[-1] + ordered[: slots - 1].sum()))


def _slots(costs: Int64, cells: int) -> int:
    """Return P."""
    if cells < 1 or len(costs) % cells:
        raise ValueError(
            f"batch={len(costs)}: must be a multiple of the pool's sequences to compare placements"
        )
    return len(costs) // cells


def _push(
    tuples: list[tuple[int, int, Int64, Int64]], number: int, loads: Int64, members: Int64
) -> None:
    """Keep the most uneven tuple first; the number tells equally uneven ones apart."""
    heapq.heappush(tuples, (int(loads.min() - loads.max()), number, loads, members))
