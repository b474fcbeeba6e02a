"""Run a rank's tiles through a kernel, and let an observer time every call.

Shapes: t, s tokens of the tensors that hold queries and keys; H query heads; G kv heads; D head
dim. Batches say which rows and heads are whose.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from libra.attention.kernel import AttentionSpec, TileKernel
from libra.attention.lowering import TileBatch
from libra.attention.observer import Direction, KernelKind, Observer


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

    def of(self, batch: TileBatch) -> "TileTensors":
        """Return views of one call's rows and heads."""
        return TileTensors(
            self.q[batch.queries, batch.heads],
            self.k[batch.keys, batch.kv],
            self.v[batch.keys, batch.kv],
            self.out[batch.queries, batch.heads],
            self.logsumexp[batch.heads, batch.queries],
        )


def empty_logsumexp(q: Tensor) -> Tensor:
    """Return room for [H, t] log-sum-exps of q [t, H, D], not initialised."""
    precision = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty((q.shape[1], q.shape[0]), dtype=precision)


@dataclass(frozen=True, slots=True)
class TileRunner:
    """A kernel, what it computes and who watches it."""

    kernel: TileKernel
    spec: AttentionSpec
    observer: Observer | None

    def forward(self, tensors: TileTensors, batches: Iterable[TileBatch]) -> None:
        """Compute tiles into ``out`` and ``logsumexp``."""
        for batch in self._calls(batches):
            own = tensors.of(batch)
            mark = self.observer.start() if self.observer else None
            self.kernel.forward(
                own.q, own.k, own.v, batch.segments, self.spec, own.out, own.logsumexp
            )
            self._note(mark, "forward", own, batch)

    def backward(
        self,
        grad_out: Tensor,
        tensors: TileTensors,
        grads: tuple[Tensor, Tensor, Tensor],
        batches: Iterable[TileBatch],
    ) -> None:
        """Write the tiles' gradients to dq [t, H, D], dk and dv [s, G, D].

        No two tiles of a set share a row and a head, so nothing need be added up.
        """
        dq, dk, dv = grads
        for batch in self._calls(batches):
            own = tensors.of(batch)
            mark = self.observer.start() if self.observer else None
            self.kernel.backward(
                grad_out[batch.queries, batch.heads],
                own.q,
                own.k,
                own.v,
                own.out,
                own.logsumexp,
                batch.segments,
                self.spec,
                (
                    dq[batch.queries, batch.heads],
                    dk[batch.keys, batch.kv],
                    dv[batch.keys, batch.kv],
                ),
            )
            self._note(mark, "backward", own, batch)

    def _calls(self, batches: Iterable[TileBatch]) -> Iterable[TileBatch]:
        if self.kernel.packed:
            return batches
        return (single for batch in batches for single in batch.singles)

    def _note(
        self, mark: object, direction: Direction, tensors: TileTensors, batch: TileBatch
    ) -> None:
        if self.observer is None:
            return
        kv_heads, head_dim = tensors.k.shape[1:]
        kind = _kind(
            tensors.q.device.type,
            self.kernel.name,
            tensors.q.dtype,
            head_dim,
            tensors.q.shape[1] // kv_heads,
            direction,
        )
        features = [kv_heads * own for own in batch.segments.total_features]
        self.observer.kernel(mark, kind, features)


# Every layer and micro-batch makes calls of the same few kinds.
@cache
def _kind(
    device: str,
    backend: str,
    dtype: torch.dtype,
    head_dim: int,
    group_heads: int,
    direction: Direction,
) -> KernelKind:
    return KernelKind(
        device=device,
        backend=backend,
        dtype=str(dtype).removeprefix("torch."),
        head_dim=head_dim,
        group_heads=group_heads,
        direction=direction,
    )
