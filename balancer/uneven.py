"""Make the micro-batches of the longest sequences dearer, and the others cheaper.

A pool that holds a sequence of more than its fair share ends late, and the other pools wait for
it. Where a step has several micro-batches, the others may work meanwhile: they take more in that
micro-batch, and all have less in those that follow.

Shapes: n sequences left; b micro-batches left; K pools of P CP groups.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def dearer_micro_batches(
    costs: Int64, micro_batches: int, pools: int, size: int, fair: float
) -> Iterator[Int64]:
    """Yield the sequences of each dearer micro-batch, then those of all others together.

    Args:
        costs: [N] non-negative integers, N = micro_batches * pools * size.
        fair: what a cell may cost, over the mean of those left, without being dearer.

    Yields:
        [pools * size] indices each, the last time [b * pools * size].
    """
    falling = np.argsort(-costs, kind="stable")
    for left in range(micro_batches, 1, -1):
        longest, others, smallest = np.split(falling, [1, len(falling) - size + 1])
        heavy = int(costs[longest].sum() + costs[smallest].sum())
        if heavy * left * pools <= fair * int(costs[falling].sum()):
            break
        # The others of this micro-batch are neighbours in order of cost, as dear as it allows.
        count = (pools - 1) * size
        spent = np.concatenate(([0], np.cumsum(costs[others])))
        windows = spent[count:] - spent[: len(spent) - count]
        # The cheapest are below the mean, and so below what is allowed.
        first = int(np.searchsorted(-windows, -heavy * (pools - 1)))
        yield np.concatenate((longest, others[first : first + count], smallest))
        falling = np.delete(others, slice(first, first + count))
    yield falling
