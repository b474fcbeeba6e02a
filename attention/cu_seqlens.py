"""Layouts by hand, for jobs that draw their batches without Libra's sampler.

Shapes: n documents of a packed sequence; P sequences of a pool; T tokens of a sequence.
"""

from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike

from libra.attention.failure import exchanging
from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.pools import SequencePools
from libra.attention.tiles import Int64


def document_lengths(cu_seqlens: ArrayLike) -> Int64:
    """Return the [n] lengths between cumulative ones; empty documents are left out.

    Args:
        cu_seqlens: [n + 1] integers from 0 that never fall, as varlen kernels take them.

    Raises:
        ValueError: they are not.
    """
    offsets = np.asarray(cu_seqlens)
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise ValueError(
            f"cu_seqlens has shape {offsets.shape} and dtype {offsets.dtype}: must be a "
            "one-dimensional list of integers"
        )
    lengths = np.diff(offsets.astype(np.int64))
    if offsets[0] != 0 or (len(lengths) and lengths.min() < 0):
        raise ValueError(f"cu_seqlens={offsets[:8].tolist()}...: must begin with 0 and never fall")
    return np.asarray(lengths[lengths > 0], dtype=np.int64)


def gather_layout(
    pools: SequencePools,
    cu_seqlens: ArrayLike,
    *,
    tokens: int | None = None,
    pool_size: int | None = None,
    query_heads: int,
    kv_heads: int,
    **planning: Any,
) -> BatchLayout:
    """Plan the cell of this rank's sequence and those that the pool's other ranks hold.

    Collective over the pool, and blocks for a round trip: a sampler that knows all lengths, as
    ``PoolSampler`` does, spares it.

    Args:
        pools: the job's process groups.
        cu_seqlens: [n + 1] of this rank's own packed sequence, not of its shard.
        tokens: T with padding; the last of ``cu_seqlens`` when ``None``.
        pool_size: CP groups of the pool, the same on all its ranks; P when ``None``.
        query_heads, kv_heads: of the model.
        planning: ``cost``, ``settings``, ``step`` and whatever else ``make_layout`` takes; the
            same on all ranks.

    Raises:
        ValueError: as ``document_lengths`` and ``make_layout``; no pool has that size.
    """
    pool = pools.of(pools.size if pool_size is None else pool_size)
    own = document_lengths(cu_seqlens)
    total = int(own.sum()) if tokens is None else tokens
    told: list[tuple[Int64, int] | None] = [None] * pool.size
    with exchanging():
        dist.all_gather_object(told, (own, total), group=pool.plane_agreement_group)
    cell = [each for each in told if each is not None]
    heads = HeadSplit(query_heads=query_heads, kv_heads=kv_heads, cp=pools.shape.cp)
    planning.setdefault("nodes", pool.nodes(heads_even=heads.even))
    return make_layout(
        [lengths for lengths, _ in cell],
        pool.place,
        tokens=[each for _, each in cell],
        heads=heads,
        cp_rank=pools.cp_rank,
        **planning,
    )
