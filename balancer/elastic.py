"""Give the sequences that no fixed pool can even out a larger pool for a micro-batch.

A sequence that costs more than P fair shares keeps its pool behind, however the others are
placed. In a pool of 2 P or 4 P groups it is a fair share again. Larger pools exchange more, so
only as many are made as there are such sequences, and each no larger than it must be.

Shapes: N sequences; B micro-batches of dp CP groups.
"""

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from libra.attention.shape import PoolShape

Int64 = NDArray[np.int64]

Sizes = tuple[tuple[int, ...], ...]


def fixed_sizes(num_sequences: int, shape: PoolShape) -> Sizes:
    """Return CP groups of each cell of each micro-batch, all pools being fixed."""
    sizes = shape.cell_sizes(num_sequences)
    return (sizes[: shape.num_pools],) * (num_sequences // shape.dp)


def elastic_sizes(costs: Int64, shape: PoolShape, tolerance_permille: int = 0) -> Sizes:
    """Return CP groups of each cell of each micro-batch, with a larger pool where one is needed.

    Larger pools come first in a micro-batch, the largest first, and so begin at multiples of
    their own sizes.

    Args:
        costs: [N] non-negative integers; N is a multiple of dp.
        shape: of the mesh; its ``largest_pool`` is the limit.
        tolerance_permille: how far above its fair share a sequence may put its pool.
    """
    free = [shape.dp] * (len(costs) // shape.dp)
    begun: list[list[int]] = [[] for _ in free]
    for size in sorted(_wanted(costs, shape, 1000 + tolerance_permille), reverse=True):
        # Sequences of similar cost run together: the first micro-batch that has room.
        at = next((index for index, groups in enumerate(free) if groups >= size), None)
        if at is not None:
            free[at] -= size
            begun[at].append(size)
    return tuple(
        (*sizes, *_fixed(groups, shape.sequences_per_pool))
        for sizes, groups in zip(begun, free, strict=True)
    )


def _fixed(groups: int, size: int) -> list[int]:
    whole, rest = divmod(groups, size)
    return [size] * whole + [rest] * (rest > 0)


def _wanted(costs: Int64, shape: PoolShape, permille: int) -> list[int]:
    """Return the sizes of pools above P: one for each sequence that needs it."""
    falling = np.sort(costs)[::-1].tolist()
    spent = [0, *accumulate(reversed(falling))]
    total, count = spent[-1], len(falling)
    wanted: list[int] = []
    taken = 0
    for cost in falling:
        # Shorter ones share a fixed pool with others as long, not with the smallest alone.
        if 2 * cost * count <= total * shape.sequences_per_pool:
            break
        # A pool of s is fair if the sequence and the s - 1 smallest that are left cost at most
        # s / N of all.
        fair = [
            size
            for size in shape.pool_sizes
            if (cost + spent[min(taken + size - 1, count)] - spent[taken]) * count * 1000
            <= total * size * permille
        ]
        size = fair[0] if fair else shape.pool_sizes[-1]
        taken = min(taken + size - 1, count)
        if size > shape.sequences_per_pool:
            wanted.append(size)
    return wanted
