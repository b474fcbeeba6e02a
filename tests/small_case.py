"""A small cell in which tiles move, its tensors and its dense reference, for any mesh.

Shapes: T tokens of a sequence; t of a rank's shard; H query heads; G kv heads; D head dim.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.attention_case import Mesh, mesh_pools
from tests.reference import dense_attention, relative_error

HEAD_DIM = 32
NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """What a rank brings to one call, and all of its sequence.

    Attributes:
        layout: of the cell.
        whole: q [T, H, D], k and v [T, G, D] and the gradient of out [T, H, D].
        own: this rank's rows of them, q, k and v of which are leaves that want gradients.
    """

    layout: BatchLayout
    whole: tuple[Tensor, ...]
    own: tuple[Tensor, ...]

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.own[0], self.own[1], self.own[2]

    def reference(self) -> tuple[Tensor, ...]:
        """Return this rank's rows of out, dq, dk and dv in float64."""
        exact = [x.double().requires_grad_() for x in self.whole[:3]]
        out = dense_attention(exact[0], exact[1], exact[2], self.layout.document_lengths.tolist())
        grads = torch.autograd.grad(out, exact, self.whole[3].double(), materialize_grads=True)
        return tuple(x[self.layout.shard].detach() for x in (out, *grads))

    def errors(self, got: tuple[Tensor, ...]) -> dict[str, float]:
        """Return how far out, dq, dk and dv are from the reference."""
        pairs = zip(NAMES, got, self.reference(), strict=True)
        return {
            name: relative_error(x.detach(), wanted) if x.numel() else 0.0
            for name, x, wanted in pairs
        }


def small_layout(
    pools: SequencePools,
    lengths: list[list[int]] | None = None,
    *,
    heads: tuple[int, int] = (2, 2),
    tokens: int = 96,
    step: int = 0,
    micro_batch: int = 0,
    size: int | None = None,
    pooling: bool = True,
    alone: bool = False,
) -> BatchLayout:
    """Return the layout of a pool's cell, by default one long document beside short ones.

    The pool is that of ``size``, or the fixed one.
    """
    pool = pools.of(size or pools.size)
    cell = lengths or [[tokens], *([[8] * (tokens // 8)] * (pool.size - 1))]
    return make_layout(
        cell,
        pool.place,
        tokens=tokens,
        heads=HeadSplit(query_heads=heads[0], kv_heads=heads[1], cp=pools.shape.cp),
        cp_rank=pools.cp_rank,
        settings=PlanSettings(
            pooling=pooling, block_rows=8, min_gain_permille=0, tolerance_permille=0
        ),
        alone=alone,
        step=step,
        micro_batch=micro_batch,
    )


def small_case(
    layout: BatchLayout, pools: SequencePools, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Small:
    """Draw the tensors of this rank's sequence, the same on all ranks of its CP group."""
    generator = torch.Generator().manual_seed(seed * 64 + pools.dp_rank)
    counts = (layout.heads.query_heads, *[layout.heads.kv_heads] * 2, layout.heads.query_heads)
    whole = tuple(
        torch.randn(layout.tokens, count, HEAD_DIM, generator=generator, dtype=torch.float64).to(
            dtype
        )
        for count in counts
    )
    own = tuple(x[layout.shard].clone() for x in whole)
    for x in own[:3]:
        x.requires_grad_()
    return Small(layout=layout, whole=whole, own=own)


def attend(attention: PooledAttention, small: Small) -> tuple[Tensor, ...]:
    """Return out, dq, dk and dv."""
    out: Tensor = attention(*small.qkv, small.layout)
    return (out, *torch.autograd.grad(out, small.qkv, small.own[3]))


def start(
    mesh: Mesh, *, step: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[PooledAttention, Small]:
    """Return an operator with these options and a case for it, in which tiles move."""
    pools = mesh_pools(mesh)
    layout = small_layout(pools, step=step)
    assert layout.plan.moved
    return PooledAttention(pools, **options), small_case(layout, pools, seed=step, dtype=dtype)


def same_bits(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> bool:
    """Return whether all tensors are equal to the bit."""
    return all(map(torch.equal, got, wanted))
