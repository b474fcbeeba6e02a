"""Ulysses' own exchange inside a CP group: from token shards to head shards and back.

Both ways are one uneven all-to-all. What goes to a rank is packed for it with all heads of a token
together, so what comes in for the heads of a rank lies in the order of tokens and is used as it is.

Shapes: T tokens of a sequence; C ranks of a CP group; t tokens of this rank's contiguous shard;
H query heads, G kv heads and D head dim of the model; h, g heads of this rank; n heads of a
rank's block, all its tensors' together.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from libra.attention.failure import RollCall, exchanging
from libra.attention.heads import HeadSplit
from libra.attention.shape import token_range

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadExchange:
    """Redistributes one sequence among the ranks of its CP group; collective over the group.

    Rank ``c`` holds tokens ``c * T // C`` to ``(c + 1) * T // C`` before, and the heads that
    ``heads`` gives it after. Any number of either is fine, none included.

    Attributes:
        heads: which heads each rank gets; made for as many ranks as the group has.
        tokens: T.
        group: the CP group, in the order of ``heads``' ranks.
        roll_call: finds out which rank failed, where given.
    """

    heads: HeadSplit
    tokens: int
    group: dist.ProcessGroup
    roll_call: RollCall | None = None

    def __post_init__(self) -> None:
        if self.heads.cp != dist.get_world_size(self.group):
            raise ValueError(
                f"heads.cp={self.heads.cp}: must be the group's "
                f"{dist.get_world_size(self.group)} ranks"
            )

    def split(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return all tokens of this rank's heads, as views of one buffer; not to be written to.

        A kv head goes to every rank that has a query head for it, and its gradients come back
        summed over them. Backward is collective as well: a rank without heads must compute its
        empty output from these tensors, or the others wait for it.

        Args:
            q: [t, H, D], strided in any way.
            k: [t, G, D]; ``v`` like it.

        Returns:
            [T, h, D] and two [T, g, D].
        """
        if self.heads.cp == 1:
            return q, k, v
        own: tuple[Tensor, Tensor, Tensor] = _Split.apply(self, q, k, v)  # type: ignore[no-untyped-call]
        return own

    def join(self, out: Tensor) -> Tensor:
        """Return this rank's tokens of all heads: [T, h, D] to [t, H, D]."""
        if self.heads.cp == 1:
            return out
        joined: Tensor = _Join.apply(self, out)  # type: ignore[no-untyped-call]
        return joined

    @property
    def query_ranges(self) -> list[Range]:
        """The first and one past the last query head of each rank."""
        return [self.heads.query_range(rank) for rank in range(self.heads.cp)]

    @property
    def kv_ranges(self) -> list[Range]:
        """The first and one past the last kv head of each rank."""
        return [self.heads.kv_range(rank) for rank in range(self.heads.cp)]

    @property
    def shards(self) -> list[int]:
        """Tokens of each rank's shard."""
        cp = self.heads.cp
        return [_width(token_range(self.tokens, rank, cp)) for rank in range(cp)]


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, exchange: HeadExchange, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        queries, kvs = exchange.query_ranges, exchange.kv_ranges
        own = _to_heads(exchange, ((q, queries), (k, kvs), (v, kvs)))
        rank = dist.get_rank(exchange.group)
        widths = [_width(queries[rank]), _width(kvs[rank]), _width(kvs[rank])]
        parts: tuple[Tensor, ...] = own.split(widths, dim=1)
        return parts

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        exchange: HeadExchange = ctx.exchange
        queries, kvs = exchange.query_ranges, exchange.kv_ranges
        blocks = _to_tokens(exchange, torch.cat(grads, dim=1), (queries, kvs, kvs))
        dq, dk, dv = (list(parts) for parts in zip(*blocks, strict=True))
        return None, torch.cat(dq, dim=1), _sum_copies(dk, kvs), _sum_copies(dv, kvs)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: HeadExchange, out: Tensor) -> Tensor:
        ctx.exchange = exchange
        blocks = _to_tokens(exchange, out.contiguous(), (exchange.query_ranges,))
        return torch.cat([part for (part,) in blocks], dim=1)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[None, Tensor]:
        exchange: HeadExchange = ctx.exchange
        return None, _to_heads(exchange, ((grads[0], exchange.query_ranges),))


def _to_heads(exchange: HeadExchange, tensors: Sequence[tuple[Tensor, Sequence[Range]]]) -> Tensor:
    """Send each rank its heads of our tokens, return all tokens of our own: [T, n, D].

    Args:
        exchange: the sequence's.
        tensors: each [t, heads, D], with the range of heads that each rank gets.
    """
    first = tensors[0][0]
    tokens, dim = first.shape[0], first.shape[2]
    ranks = range(exchange.heads.cp)
    widths = [sum(_width(ranges[rank]) for _, ranges in tensors) for rank in ranks]
    sent = [tokens * width * dim for width in widths]
    outgoing = first.new_empty(sum(sent))
    for rank, block in zip(ranks, outgoing.split(sent), strict=True):
        parts = [x[:, slice(*ranges[rank])] for x, ranges in tensors]
        torch.cat(parts, dim=1, out=block.view(tokens, widths[rank], dim))
    own = widths[dist.get_rank(exchange.group)]
    received = [shard * own * dim for shard in exchange.shards]
    return _swap(exchange, outgoing, sent, received).view(exchange.tokens, own, dim)


def _to_tokens(
    exchange: HeadExchange, x: Tensor, ranges: Sequence[Sequence[Range]]
) -> list[tuple[Tensor, ...]]:
    """Send each rank its tokens of our heads, return ours of each rank's heads.

    Args:
        exchange: the sequence's.
        x: [T, n, D], contiguous.
        ranges: for each tensor whose heads lie in ``x``, the range of heads of each rank.

    Returns:
        For each rank its heads of each tensor, [t, heads, D] each.
    """
    own, dim = x.shape[1:]
    shards = exchange.shards
    tokens = shards[dist.get_rank(exchange.group)]
    widths = [[_width(each) for each in of_rank] for of_rank in zip(*ranges, strict=True)]
    received = [tokens * sum(of_rank) * dim for of_rank in widths]
    incoming = _swap(exchange, x.view(-1), [shard * own * dim for shard in shards], received)
    return [
        block.view(tokens, sum(of_rank), dim).split(of_rank, dim=1)
        for block, of_rank in zip(incoming.split(received), widths, strict=True)
    ]


def _swap(exchange: HeadExchange, outgoing: Tensor, sent: list[int], received: list[int]) -> Tensor:
    incoming = outgoing.new_empty(sum(received))
    if exchange.tokens:
        guard = exchange.roll_call.guard() if exchange.roll_call else nullcontext()
        with guard, exchanging():
            dist.all_to_all_single(incoming, outgoing, received, sent, group=exchange.group)
    return incoming


def _sum_copies(blocks: Sequence[Tensor], ranges: Sequence[Range]) -> Tensor:
    """Return [t, G, D] from each rank's gradients; those of the same kv head are added.

    Halves are added in float32 and rounded once, so that more ranks do not cost precision.
    """
    heads = max(end for _, end in ranges)
    if sum(map(_width, ranges)) == heads:
        return torch.cat(list(blocks), dim=1)
    tokens, _, dim = blocks[0].shape
    total = blocks[0].new_empty(
        tokens, heads, dim, dtype=torch.promote_types(blocks[0].dtype, torch.float32)
    )
    filled = 0
    for (begin, end), block in zip(ranges, blocks, strict=True):
        # Ranges rise: what of this one is not yet filled is its tail.
        fresh = min(max(begin, filled), end)
        total[:, begin:fresh] += block[:, : fresh - begin]
        total[:, fresh:end] = block[:, fresh - begin :]
        filled = max(filled, end)
    return total.to(blocks[0].dtype)


def _width(of: Range) -> int:
    return of[1] - of[0]
