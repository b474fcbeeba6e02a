"""Run a rank's tiles through a kernel, and let an observer time every call.

Shapes: t, s tokens of the tensors that hold queries and keys; H query heads; G kv heads; D head
dim. Tiles say which rows are whose.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from libra.attention.kernel import TileKernel
from libra.attention.lowering import TileRows
from libra.attention.observer import Direction, KernelKind, Observer

Features = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class TileTensors:
    """The tensors that a set of tiles reads, and where its results lie.

    ``q``, ``out`` are [t, H, D]; ``k``, ``v`` [s, G, D]; ``logsumexp`` [H, t].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    logsumexp: Tensor

    @classmethod
    def empty(cls, q: Tensor, k: Tensor, v: Tensor) -> "TileTensors":
        """Make room for results, not initialised."""
        precision = torch.promote_types(q.dtype, torch.float32)
        logsumexp = q.new_empty((q.shape[1], q.shape[0]), dtype=precision)
        return cls(q, k, v, torch.empty_like(q), logsumexp)


@dataclass(frozen=True, slots=True)
class TileRunner:
    """A kernel, its softmax scale and who watches it."""

    kernel: TileKernel
    scale: float
    observer: Observer | None

    def forward(self, tensors: TileTensors, tiles: TileRows, part: slice = slice(None)) -> None:
        """Compute tiles into ``out`` and ``logsumexp``."""
        kind = self._kind(tensors, "forward")
        for queries, keys, row_begin, features in _tile_slices(tiles, part):
            mark = self.observer.start() if self.observer else None
            out, logsumexp = self.kernel.forward(
                tensors.q[queries], tensors.k[keys], tensors.v[keys], row_begin, self.scale
            )
            self._note(mark, kind, tensors, features)
            tensors.out[queries] = out
            tensors.logsumexp[:, queries] = logsumexp

    def backward(
        self,
        grad_out: Tensor,
        tensors: TileTensors,
        grads: tuple[Tensor, Tensor, Tensor],
        tiles: TileRows,
        part: slice = slice(None),
    ) -> None:
        """Write the tiles' gradients to dq [t, H, D], dk and dv [s, G, D].

        No two tiles of a set share a row: at home a document is one tile, and what is received
        comes with keys of its own.
        """
        dq, dk, dv = grads
        kind = self._kind(tensors, "backward")
        for queries, keys, row_begin, features in _tile_slices(tiles, part):
            mark = self.observer.start() if self.observer else None
            self.kernel.backward(
                grad_out[queries],
                tensors.q[queries],
                tensors.k[keys],
                tensors.v[keys],
                tensors.out[queries],
                tensors.logsumexp[:, queries],
                row_begin,
                self.scale,
                (dq[queries], dk[keys], dv[keys]),
            )
            self._note(mark, kind, tensors, features)

    def _kind(self, tensors: TileTensors, direction: Direction) -> KernelKind:
        return KernelKind(
            device=tensors.q.device.type,
            backend=self.kernel.name,
            dtype=str(tensors.q.dtype).removeprefix("torch."),
            head_dim=tensors.q.shape[2],
            group_heads=tensors.q.shape[1] // tensors.k.shape[1],
            direction=direction,
        )

    def _note(
        self, mark: object, kind: KernelKind, tensors: TileTensors, features: Features
    ) -> None:
        if self.observer is None:
            return
        kv_heads = tensors.k.shape[1]
        tiles, queries, keys, pairs = (value * kv_heads for value in features)
        self.observer.kernel(mark, kind, (tiles, queries, keys, pairs))


def _tile_slices(tiles: TileRows, part: slice) -> Iterator[tuple[slice, slice, int, Features]]:
    """Yield (query rows, key rows, first row, features) of each tile, as plain integers."""
    columns = (tiles.query_start, tiles.key_start, tiles.row_begin, tiles.row_end)
    rows = zip(*(column[part].tolist() for column in columns), strict=True)
    features = tiles.features()[part].tolist()
    for (query_start, key_start, begin, end), feature in zip(rows, features, strict=True):
        queries = slice(query_start, query_start + end - begin)
        yield queries, slice(key_start, key_start + end), begin, tuple(feature)
