"""The tiles of one kernel call, packed one after the other: what a varlen kernel takes.

Shapes: n segments; their queries lie in one tensor one after the other, and so do their keys.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Query rows and keys of each tile.

    Query row ``j`` of a segment reads its keys ``0 .. key_tokens - query_tokens + j``: the last
    query is aligned to the last key, as flash-attn has it. No segment is empty and none has more
    queries than keys.

    Attributes:
        query_tokens: [n] query rows.
        key_tokens: [n] keys.
    """

    query_tokens: Int64
    key_tokens: Int64

    def __len__(self) -> int:
        return len(self.query_tokens)

    @cached_property
    def query_offsets(self) -> Int32:
        """[n + 1] cumulative query rows, the ``cu_seqlens_q`` of varlen kernels."""
        return _offsets(self.query_tokens)

    @cached_property
    def key_offsets(self) -> Int32:
        """[n + 1] cumulative keys, the ``cu_seqlens_k`` of varlen kernels."""
        return _offsets(self.key_tokens)

    @cached_property
    def features(self) -> Int64:
        """[n, F] features of each segment for one kv head."""
        return tile_features(self.key_tokens - self.query_tokens, self.key_tokens)

    @cached_property
    def total_features(self) -> tuple[int, ...]:
        """[F] sums of the features, for one kv head."""
        return tuple(self.features.sum(axis=0).tolist())

    @cached_property
    def singles(self) -> "tuple[Segments, ...]":
        """Each segment alone. Features of all are found at once: one by one takes far longer."""
        alone = tuple(
            Segments(query_tokens=queries, key_tokens=keys)
            for queries, keys in zip(
                self.query_tokens[:, None], self.key_tokens[:, None], strict=True
            )
        )
        for single, features in zip(alone, self.features.tolist(), strict=True):
            # What its own property would come to.
            single.__dict__["total_features"] = tuple(features)
        return alone


def _offsets(tokens: Int64) -> Int32:
    return np.concatenate(([0], np.cumsum(tokens))).astype(np.int32)
