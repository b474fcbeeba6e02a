"""Move a wave's parcels among the bins of a pool in one uneven all-to-all.

One flat buffer carries, for each peer in turn, its parcels, and for each parcel its tensors: what
arrives is computed where it lies, and results are computed where they leave from. Sizes follow
from the plan, which all ranks share, so none is ever asked for.

Shapes: B ranks of the group; D head dim; a parcel's rows are [n, heads, D] of one tensor.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from libra.attention.failure import exchanging
from libra.attention.lowering import Parcel
from libra.attention.observer import Traffic

Side = Literal["query", "key"]

# Tensors of a tile that travel together: q, k and v go out and dq, dk and dv come back.
QKV: tuple[Side, ...] = ("query", "key", "key")
# Outputs come back, their gradients go out.
QUERIES: tuple[Side, ...] = ("query",)


class Packing:
    """Where the tensors of parcels lie in a flat buffer."""

    def __init__(self, parcels: Sequence[Parcel], sides: Sequence[Side], head_dim: int) -> None:
        self._parcels, self._sides, self._head_dim = parcels, sides, head_dim
        self._shapes = [
            [own.query_shape if side == "query" else own.key_shape for side in sides]
            for own in parcels
        ]

    @property
    def elements(self) -> int:
        return sum(self._elements(shapes) for shapes in self._shapes)

    def by_peer(self, size: int) -> list[int]:
        """Return elements for each of ``size`` peers."""
        counts = [0] * size
        for own, shapes in zip(self._parcels, self._shapes, strict=True):
            counts[own.peer] += self._elements(shapes)
        return counts

    def views(self, buffer: Tensor) -> Iterator[tuple[Parcel, list[Tensor]]]:
        """Yield each parcel and its tensors [n, heads, D] in the buffer."""
        offset = 0
        for own, shapes in zip(self._parcels, self._shapes, strict=True):
            tensors = []
            for rows, heads in shapes:
                end = offset + rows * heads * self._head_dim
                tensors.append(buffer[offset:end].view(rows, heads, self._head_dim))
                offset = end
            yield own, tensors

    def gather(self, buffer: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy the parcels' rows of tensors at home [T, heads, D] into the buffer."""
        for own, packed in self.views(buffer):
            for side, into, source in zip(self._sides, packed, tensors, strict=True):
                begin = 0
                for rows, heads in _home_rows(own, side):
                    end = begin + rows.stop - rows.start
                    into[begin:end] = source[rows, heads]
                    begin = end

    def scatter(self, buffer: Tensor, tensors: Sequence[Tensor], *, add: Sequence[bool]) -> None:
        """Write, or add, the buffer's rows to tensors at home [T, heads, D]."""
        for own, packed in self.views(buffer):
            for side, source, into, adds in zip(self._sides, packed, tensors, add, strict=True):
                begin = 0
                for rows, heads in _home_rows(own, side):
                    end = begin + rows.stop - rows.start
                    if adds:
                        into[rows, heads] += source[begin:end]
                    else:
                        into[rows, heads] = source[begin:end]
                    begin = end

    def _elements(self, shapes: Sequence[tuple[int, int]]) -> int:
        return sum(rows * heads for rows, heads in shapes) * self._head_dim


def _home_rows(parcel: Parcel, side: Side) -> Iterator[tuple[slice, slice]]:
    rows, heads = (
        (parcel.query_rows, parcel.heads) if side == "query" else (parcel.key_rows, parcel.kv)
    )
    return ((own, heads) for own in rows)


class Exchange:
    """An exchange in flight: begun by the constructor, ended by ``wait``.

    Attributes:
        issued: an observer's mark of when it began.
    """

    def __init__(
        self,
        outgoing: Tensor,
        incoming: Tensor,
        sent: Packing,
        received: Packing,
        group: dist.ProcessGroup,
        issued: Any = None,
    ) -> None:
        size = dist.get_world_size(group)
        # Both are kept alive until the exchange has ended.
        self.outgoing, self.incoming = outgoing, incoming
        self.sent, self.received = sent, received
        self.issued, self._group = issued, group
        self._counts = received.by_peer(size), sent.by_peer(size)
        with exchanging():
            self._work = dist.all_to_all_single(
                incoming, outgoing, *self._counts, group=group, async_op=True
            )

    @property
    def traffic(self) -> Traffic:
        sent, received = self.outgoing.numel(), self.incoming.numel()
        size = self.outgoing.element_size()
        return Traffic(
            device=self.outgoing.device.type,
            backend=dist.get_backend(self._group),
            messages=max(sum(map(bool, counts)) for counts in self._counts),
            sent_bytes=sent * size,
            busier_bytes=max(sent, received) * size,
        )

    @property
    def done(self) -> bool:
        """Whether it was waited for."""
        return self._work is None

    def wait(self) -> None:
        """Block until rows are here and gone; a second call returns at once."""
        work, self._work = self._work, None
        if work is not None:
            with exchanging():
                work.wait()
