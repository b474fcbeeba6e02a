"""Turn a cell into the tensors that one rank trains on.

Shapes: T tokens of a packed sequence, padding included; t = T / C tokens of a rank's shard.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from libra.agent.sampler import Cell, Pools

IGNORED_LABEL = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One rank's shard of its packed sequence, int64 [t] each.

    Attributes:
        tokens: token ids; padding is 0.
        labels: the next token; -100 at the end of each document and on padding.
        positions: counted from the start of each document.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor


def build_batch(
    cell: Cell, pools: Pools, read_tokens: Callable[[int, int, int], ArrayLike]
) -> Batch:
    """Return the rank's contiguous shard of its cell.

    Args:
        cell: from the sampler.
        pools: this rank's place in the mesh.
        read_tokens: gives the token ids of (document, begin, end).
    """
    total = cell.layout.tokens
    tokens = np.zeros(total, dtype=np.int64)
    labels = np.full(total, IGNORED_LABEL, dtype=np.int64)
    positions = np.zeros(total, dtype=np.int64)
    at = 0
    segments = cell.segments
    ranges = zip(
        segments.document.tolist(), segments.begin.tolist(), segments.end.tolist(), strict=True
    )
    for document, begin, end in ranges:
        length = end - begin
        tokens[at : at + length] = read_tokens(document, begin, end)
        labels[at : at + length - 1] = tokens[at + 1 : at + length]
        positions[at : at + length] = np.arange(length)
        at += length
    shard = total // pools.shape.cp
    own = slice(pools.cp_rank * shard, (pools.cp_rank + 1) * shard)
    return Batch(
        tokens=torch.from_numpy(tokens[own]),
        labels=torch.from_numpy(labels[own]),
        positions=torch.from_numpy(positions[own]),
    )
