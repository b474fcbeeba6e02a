"""Move rows of several tensors among the ranks of a plane in one uneven all-to-all.

One flat buffer carries, for each peer in turn, that peer's rows of every tensor. Its sizes
follow from the plan, which all ranks of the plane share, so none is ever asked for.

Shapes: P ranks in the plane; a parcel's rows are [n, heads, head dim] of one tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """Rows of one tensor that travel.

    Attributes:
        like: a tensor with rows of the same shape and dtype.
        outgoing: for each of P peers, the pieces [n, heads, head dim] that it gets.
        incoming: P row counts that come from them.
    """

    like: Tensor
    outgoing: Sequence[Sequence[Tensor]]
    incoming: Sequence[int]

    @property
    def row_elements(self) -> int:
        return self.like.shape[1] * self.like.shape[2]

    def sent_elements(self, peer: int) -> int:
        return sum(piece.numel() for piece in self.outgoing[peer])

    def received_elements(self, peer: int) -> int:
        return self.incoming[peer] * self.row_elements


class Exchange:
    """An exchange in flight: begun by the constructor, ended by ``wait``."""

    def __init__(self, parcels: Sequence[Parcel], group: dist.ProcessGroup) -> None:
        self._parcels = parcels
        self._peers = range(dist.get_world_size(group))
        sent = [sum(parcel.sent_elements(peer) for parcel in parcels) for peer in self._peers]
        due = [sum(parcel.received_elements(peer) for parcel in parcels) for peer in self._peers]
        # The outgoing buffer is kept alive until the exchange has ended.
        self._outgoing = self._pack()
        self._incoming = self._outgoing.new_empty(sum(due))
        self._work = dist.all_to_all_single(
            self._incoming, self._outgoing, due, sent, group=group, async_op=True
        )

    @property
    def sent_bytes(self) -> int:
        return self._outgoing.numel() * self._outgoing.element_size()

    def wait(self) -> list[Tensor]:
        """Block until the rows are here; return each parcel's received rows, by peer."""
        if self._work is not None:
            self._work.wait()
        pieces: list[list[Tensor]] = [[] for _ in self._parcels]
        offset = 0
        for peer in self._peers:
            for parcel, own in zip(self._parcels, pieces, strict=True):
                end = offset + parcel.received_elements(peer)
                own.append(self._incoming[offset:end].view(-1, *parcel.like.shape[1:]))
                offset = end
        return [_join(own) for own in pieces]

    def _pack(self) -> Tensor:
        """Lay the pieces out by peer, then by parcel: the one copy that sending costs."""
        pieces = [
            piece.reshape(-1)
            for peer in self._peers
            for parcel in self._parcels
            for piece in parcel.outgoing[peer]
        ]
        return torch.cat(pieces) if pieces else self._parcels[0].like.new_empty(0)


def _join(pieces: list[Tensor]) -> Tensor:
    """Concatenate, without a copy when only one peer has sent anything."""
    filled = [piece for piece in pieces if len(piece)]
    return filled[0] if len(filled) == 1 else torch.cat(pieces)
