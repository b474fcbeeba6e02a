"""Turn a cell into the tensors that one rank trains on.

Shapes: T tokens of a packed sequence, padding included; t tokens of a rank's shard.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from libra.agent.cell import Cell

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

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory; loaders call it where asked to pin."""
        return self._each(lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Return the batch on a device; ``non_blocking`` lets copies of pinned memory overlap."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            tokens=change(self.tokens),
            labels=change(self.labels),
            positions=change(self.positions),
        )


def build_batch(cell: Cell, read_tokens: Callable[[int, int, int], ArrayLike]) -> Batch:
    """Return the rank's contiguous shard of its cell.

    Args:
        cell: from the sampler.
        read_tokens: gives the token ids of (document, begin, end): ``end - begin`` integers.

    Raises:
        ValueError: it gives something else; names the document and what came.
    """
    layout, segments = cell.layout, cell.segments
    tokens = np.zeros(layout.tokens, dtype=np.int64)
    at = 0
    ranges = zip(
        segments.document.tolist(), segments.begin.tolist(), segments.end.tolist(), strict=True
    )
    for document, begin, end in ranges:
        own = read_tokens(document, begin, end)
        tokens[at : at + end - begin] = _checked(own, document, begin, end)
        at += end - begin
    following = np.append(tokens[1:], 0)
    shard = layout.shard
    labels = np.where(layout.label_mask, following[shard], IGNORED_LABEL)
    return Batch(
        tokens=torch.from_numpy(tokens[shard]),
        labels=torch.from_numpy(labels),
        positions=torch.from_numpy(layout.position_ids),
    )


def _checked(own: ArrayLike, document: int, begin: int, end: int) -> NDArray[np.integer[Any]]:
    """Return the token ids of one range; numpy would repeat a single one and cut fractions."""
    try:
        ids: NDArray[Any] = np.asarray(own)
        what = f"{ids.dtype} of shape {list(ids.shape)}"
    except (ValueError, TypeError) as error:
        ids, what = np.zeros(()), f"{type(own).__name__}, which is no array: {error}"
    if ids.shape != (end - begin,) or ids.dtype.kind not in "iu":
        raise ValueError(
            f"read_tokens(document={document}, begin={begin}, end={end}): must give "
            f"{end - begin} token ids, integers in one dimension, not {what}"
        )
    return ids
