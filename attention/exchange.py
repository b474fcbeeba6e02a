"""Move rows of several tensors among the ranks of a plane in one uneven all-to-all.

One flat buffer carries, for each peer in turn, that peer's rows of every tensor. Its sizes
follow from the plan, which all ranks of the plane share, so none is ever asked for.

Shapes: P ranks in the plane; tensor i has rows of its own shape (heads, head dim).
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
        rows: [n, ...] what this rank sends, by peer.
        sent: P row counts, summing to n.
        received: P row counts that come back.
    """

    rows: Tensor
    sent: Sequence[int]
    received: Sequence[int]

    @property
    def row_elements(self) -> int:
        return self.rows[0].numel() if len(self.rows) else int(self.rows.shape[1:].numel())


class Exchange:
    """An exchange in flight: begun by the constructor, ended by ``wait``."""

    def __init__(self, parcels: Sequence[Parcel], group: dist.ProcessGroup) -> None:
        self._parcels = parcels
        self._peers = range(dist.get_world_size(group))
        first = parcels[0].rows
        self._buffer = first.new_empty(sum(self._splits("received")))
        # The outgoing buffer is kept alive until the exchange has ended.
        self._outgoing = self._pack()
        self._work = dist.all_to_all_single(
            self._buffer,
            self._outgoing,
            self._splits("received"),
            self._splits("sent"),
            group=group,
            async_op=True,
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
                elements = parcel.received[peer] * parcel.row_elements
                segment = self._buffer[offset : offset + elements]
                own.append(segment.view(parcel.received[peer], *parcel.rows.shape[1:]))
                offset += elements
        return [_join(own) for own in pieces]

    def _splits(self, direction: str) -> list[int]:
        """Return the P element counts of the flat buffer."""
        return [
            sum(getattr(parcel, direction)[peer] * parcel.row_elements for parcel in self._parcels)
            for peer in self._peers
        ]

    def _pack(self) -> Tensor:
        by_peer = [torch.split(parcel.rows, list(parcel.sent)) for parcel in self._parcels]
        return torch.cat([own[peer].reshape(-1) for peer in self._peers for own in by_peer])


def _join(pieces: list[Tensor]) -> Tensor:
    """Concatenate, without a copy when only one peer has sent anything."""
    filled = [piece for piece in pieces if len(piece)]
    return filled[0] if len(filled) == 1 else torch.cat(pieces)
