"""The autograd function at the heart: a plane's tiles, some of them computed by other ranks.

Shapes: T tokens of a rank's own sequence; h query heads, g kv heads, D head dim of its plane;
m query rows and n keys that it receives.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from libra.attention.exchange import Exchange, Parcel
from libra.attention.lowering import LoweredPlan, TileRows, tokens_by_peer
from libra.attention.tiles import TileRunner, TileTensors


def pool_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: LoweredPlan,
    group: dist.ProcessGroup,
    runner: TileRunner,
) -> Tensor:
    """Return out [T, h, D] of q [T, h, D], k and v [T, g, D]; collective when tiles move."""
    out: Tensor = _PooledTiles.apply(q, k, v, plan, group, runner)  # type: ignore[no-untyped-call]
    return out


class _PooledTiles(torch.autograd.Function):
    """Attention over a plan's tiles.

    forward:  out[rows] = attend(q[rows], k[keys], v[keys])      for each tile, here or elsewhere
    backward: dq[rows] = ..., dk[keys] += ..., dv[keys] += ...   where forward was computed

    A rank that computes others' tiles keeps their inputs and results until backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: LoweredPlan,
        group: dist.ProcessGroup,
        runner: TileRunner,
    ) -> Tensor:
        trip = _Trip(plan, group, runner)
        own = TileTensors.empty(q, k, v, padded=True)
        first, rest = _halves(plan.local)
        away = trip.dispatch(q=[q], kv=[k, v])
        runner.forward(own, plan.local, first)
        theirs = TileTensors.empty(*trip.wait(away)) if away else None
        if theirs:
            runner.forward(theirs, plan.received)
        back = trip.give_back(q=[theirs.out]) if theirs else None
        runner.forward(own, plan.local, rest)
        if back:
            own.out[trip.sent_rows] = trip.wait(back)[0]
        ctx.trip, ctx.halves = trip, (first, rest)
        received = (theirs.q, theirs.k, theirs.v, theirs.out, theirs.logsumexp) if theirs else ()
        ctx.save_for_backward(q, k, v, own.out, own.logsumexp, *received)
        return own.out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        trip: _Trip = ctx.trip
        plan, runner, (first, rest) = trip.plan, trip.runner, ctx.halves
        grad_out, saved = grads[0], ctx.saved_tensors
        own = TileTensors(*saved[:5])
        theirs = TileTensors(*saved[5:]) if len(saved) > 5 else None
        own_grads = _zeros(own)
        away = trip.dispatch(q=[grad_out], kv=[]) if theirs else None
        runner.backward(grad_out, own, own_grads, plan.local, first)
        back = None
        if theirs and away:
            their_grads = _room_for_grads(theirs)
            runner.backward(trip.wait(away)[0], theirs, their_grads, plan.received)
            back = trip.give_back(q=[their_grads[0]], kv=list(their_grads[1:]))
        runner.backward(grad_out, own, own_grads, plan.local, rest)
        if back:
            dq, dk, dv = trip.wait(back)
            own_grads[0][trip.sent_rows] = dq
            own_grads[1].index_add_(0, trip.sent_keys, dk)
            own_grads[2].index_add_(0, trip.sent_keys, dv)
        return *own_grads, None, None, None


class _Trip:
    """The way of a plan's moving tiles, out and back, as row indices and counts."""

    def __init__(self, plan: LoweredPlan, group: dist.ProcessGroup, runner: TileRunner) -> None:
        self.plan, self.runner = plan, runner
        self._group = group
        self.sent_rows = torch.from_numpy(plan.sent.query_rows())
        self.sent_keys = torch.from_numpy(plan.sent.key_rows())
        self._sent = [
            tokens_by_peer(plan.sent_to, tokens)
            for tokens in (plan.sent.query_tokens, plan.sent.row_end)
        ]
        self._received = [
            tokens_by_peer(plan.received_from, tokens)
            for tokens in (plan.received.query_tokens, plan.received.row_end)
        ]

    def dispatch(self, *, q: list[Tensor], kv: list[Tensor]) -> Exchange | None:
        """Send rows of the rank's own tensors to where its tiles go; None if nothing moves."""
        if not self.plan.moved:
            return None
        queries = [Parcel(rows=x[self.sent_rows], **self._out(0)) for x in q]
        keys = [Parcel(rows=x[self.sent_keys], **self._out(1)) for x in kv]
        return Exchange([*queries, *keys], self._group)

    def give_back(self, *, q: list[Tensor], kv: list[Tensor] | None = None) -> Exchange:
        """Send rows of received tiles back to their homes."""
        queries = [Parcel(rows=x, **self._back(0)) for x in q]
        keys = [Parcel(rows=x, **self._back(1)) for x in kv or []]
        return Exchange([*queries, *keys], self._group)

    def wait(self, exchange: Exchange) -> list[Tensor]:
        """Wait for an exchange and let the observer know for how long."""
        observer = self.runner.observer
        mark = observer.start() if observer else None
        rows = exchange.wait()
        if observer:
            observer.exchange(mark, exchange.sent_bytes)
        return rows

    def _out(self, kind: int) -> dict[str, list[int]]:
        return {"sent": self._sent[kind], "received": self._received[kind]}

    def _back(self, kind: int) -> dict[str, list[int]]:
        return {"sent": self._received[kind], "received": self._sent[kind]}


def _room_for_grads(tensors: TileTensors) -> tuple[Tensor, Tensor, Tensor]:
    """Return uninitialised gradients: received tiles cover all of their rows."""
    return (
        torch.empty_like(tensors.q),
        torch.empty_like(tensors.k),
        torch.empty_like(tensors.v),
    )


def _zeros(tensors: TileTensors) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.zeros_like(tensors.q),
        torch.zeros_like(tensors.k),
        torch.zeros_like(tensors.v),
    )


def _halves(tiles: TileRows) -> tuple[slice, slice]:
    """Cut tiles where half of their causal pairs are done: work to hide the exchanges behind."""
    pairs = tiles.features()[:, 3].cumsum()
    middle = int((2 * pairs < pairs[-1]).sum()) + 1 if len(pairs) else 0
    return slice(0, middle), slice(middle, None)
