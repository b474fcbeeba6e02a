"""Ulysses' own exchange inside a CP group: from token shards to head shards and back.

Shapes: T tokens of a sequence; C ranks of a CP group; t = T / C tokens of a rank's contiguous
shard; N heads, all tensors' together; D head dim.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def split_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return all tokens of this rank's share of heads: [t, N, D] to [T, N / C, D]."""
    return _redistribute(x, group, to_heads=True)


def join_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's tokens of all heads: [T, N / C, D] to [t, N, D]."""
    return _redistribute(x, group, to_heads=False)


def _redistribute(x: Tensor, group: dist.ProcessGroup, *, to_heads: bool) -> Tensor:
    if dist.get_world_size(group) == 1:
        return x
    out: Tensor = _Redistribute.apply(x, group, to_heads)  # type: ignore[no-untyped-call]
    return out


class _Redistribute(torch.autograd.Function):
    """An all-to-all that is a permutation of elements over ranks: its gradient is its inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, to_heads: bool) -> Tensor:
        ctx.group, ctx.to_heads = group, to_heads
        return (_to_heads if to_heads else _to_tokens)(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return (_to_tokens if ctx.to_heads else _to_heads)(grads[0], ctx.group), None, None


def _to_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    tokens, heads, dim = x.shape
    # (C, t, N / C, D): what goes to each rank lies together.
    outgoing = x.view(tokens, size, heads // size, dim).transpose(0, 1).contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return incoming.view(size * tokens, heads // size, dim)


def _to_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    tokens, heads, dim = x.shape
    outgoing = x.contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    # (C, t, N / C, D): each rank has sent its heads of our tokens.
    parts = incoming.view(size, tokens // size, heads, dim)
    return parts.transpose(0, 1).reshape(tokens // size, size * heads, dim)
