"""How even a placement can be at best, whatever algorithm makes it.

A sequence is never split between cells and a cell has a fixed number of slots, so a long sequence
brings others with it. Where the bound is high it is the lengths that are the limit.

Shapes: N sequences; M cells.
"""

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

# With more of them, the sequences are no longer the few that rule a step.
MOST_LARGEST = 16

# Capacities are reciprocals of weights in this fixed point, rounded up: the bound stays one.
_POINT_BITS = 40


def lower_bound(costs: Int64, sizes: Int64, weights: Int64, *, largest: int = MOST_LARGEST) -> int:
    """Return what load times weight the heaviest cell has at least, in any placement.

    The k largest sequences lie in some j <= k cells, together with as many others as these cells
    have slots left, at least the smallest; one of the j cells is as heavy as their mean. For k = 1
    that is the largest sequence with the smallest others. The mean over all cells is always one.

    Args:
        costs: [N] non-negative integers.
        sizes: [M] slots of each cell, N in all.
        weights: [M] positive integers, by which loads of different cells compare.
        largest: the most k to look at; with cells of unequal sizes it is 1 at most.
    """
    capacities = sorted(-(-(1 << _POINT_BITS) // weight) for weight in weights.tolist())[::-1]
    # [N + 1]: what the smallest sequences cost together.
    spent = [0, *np.cumsum(np.sort(costs)).tolist()]
    bound = _divided(spent[-1], sum(capacities))
    if not largest:
        return bound
    if sizes.min() < sizes.max():
        top = spent[-1] - spent[-2]
        kinds = set(zip(sizes.tolist(), weights.tolist(), strict=True))
        with_top = [(top + spent[size - 1]) * weight for size, weight in kinds]
        return max(bound, int(min(with_top)))
    size = int(sizes[0])
    room = [0, *np.cumsum(np.array(capacities[:largest], dtype=object)).tolist()]
    for k in range(1, len(room)):
        top = spent[-1] - spent[-1 - k]
        held = range(-(-k // size), k + 1)
        bound = max(bound, min(_divided(top + spent[j * size - k], room[j]) for j in held))
    return bound


def _divided(load: int, capacity: int) -> int:
    return -(-(load << _POINT_BITS) // capacity)
