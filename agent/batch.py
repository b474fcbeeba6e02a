"""Turn a cell into the tensors that one rank trains on.

Shapes: T tokens of a packed sequence, padding included; t tokens of a rank's shard.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from libra.agent.sampler import Cell

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


def build_batch(cell: Cell, read_tokens: Callable[[int, int, int], ArrayLike]) -> Batch:
    """Return the rank's contiguous shard of its cell.

    Args:
        cell: from the sampler.
        read_tokens: gives the token ids of (document, begin, end).
    """
    layout, segments = cell.layout, cell.segments
    tokens = np.zeros(layout.tokens, dtype=np.int64)
    at = 0
    ranges = zip(
        segments.document.tolist(), segments.begin.tolist(), segments.end.tolist(), strict=True
    )
    for document, begin, end in ranges:
        tokens[at : at + end - begin] = read_tokens(document, begin, end)
        at += end - begin
    following = np.append(tokens[1:], 0)
    own = layout.shard
    labels = np.where(layout.label_mask, following[own], IGNORED_LABEL)
    return Batch(
        tokens=torch.from_numpy(tokens[own]),
        labels=torch.from_numpy(labels),
        positions=torch.from_numpy(layout.position_ids),
    )
