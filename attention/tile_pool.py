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
        own = TileTensors.empty(q, k, v)
        first, rest = _halves(plan.local)
        away = trip.dispatch(q=[q], kv=[k, v])
        runner.forward(own, plan.local, first)
        theirs = TileTensors.empty(*trip.wait(away)) if away else None
        if theirs:
            runner.forward(theirs, plan.received)
        back = trip.give_back(q=[theirs.out]) if theirs else None
        runner.forward(own, plan.local, rest)
        if back:
            trip.put_queries(own.out, trip.wait(back)[0])
        own.out[plan.tokens :] = 0
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
        # Keys of a document that went away whole get no gradient here but what comes back.
        dq, dk, dv = torch.empty_like(own.q), torch.zeros_like(own.k), torch.zeros_like(own.v)
        away = trip.dispatch(q=[grad_out], kv=[]) if theirs else None
        runner.backward(grad_out, own, (dq, dk, dv), plan.local, first)
        back = None
        if theirs and away:
            dq_here = torch.empty_like(theirs.q)
            dk_here, dv_here = torch.empty_like(theirs.k), torch.empty_like(theirs.v)
            received = trip.wait(away)[0]
            runner.backward(received, theirs, (dq_here, dk_here, dv_here), plan.received)
            back = trip.give_back(q=[dq_here], kv=[dk_here, dv_here])
        runner.backward(grad_out, own, (dq, dk, dv), plan.local, rest)
        if back:
            dq_there, dk_there, dv_there = trip.wait(back)
            trip.put_queries(dq, dq_there)
            trip.add_keys(dk, dk_there)
            trip.add_keys(dv, dv_there)
        dq[plan.tokens :] = 0
        return dq, dk, dv, None, None, None


class _Trip:
    """The way of a plan's moving tiles, out and back, as slices of rows."""

    def __init__(self, plan: LoweredPlan, group: dist.ProcessGroup, runner: TileRunner) -> None:
        self.plan, self.runner = plan, runner
        self._group = group
        self._queries, self._keys = plan.sent.query_slices(), plan.sent.key_slices()

    def dispatch(self, *, q: list[Tensor], kv: list[Tensor]) -> Exchange | None:
        """Send rows of the rank's own tensors to where its tiles go; None if nothing moves."""
        if not self.plan.moved:
            return None
        plan = self.plan
        due_queries = tokens_by_peer(plan.received_from, plan.received.query_tokens)
        due_keys = tokens_by_peer(plan.received_from, plan.received.row_end)
        queries = [self._outgoing(x, self._queries, due_queries) for x in q]
        keys = [self._outgoing(x, self._keys, due_keys) for x in kv]
        return Exchange([*queries, *keys], self._group)

    def _outgoing(self, x: Tensor, rows: list[slice], due: list[int]) -> Parcel:
        ends = self.plan.sent_to.cumsum().tolist()
        begins = [0, *ends[:-1]]
        by_peer = [
            [x[own] for own in rows[begin:end]] for begin, end in zip(begins, ends, strict=True)
        ]
        return Parcel(like=x, outgoing=by_peer, incoming=due)

    def give_back(self, *, q: list[Tensor], kv: list[Tensor] | None = None) -> Exchange:
        """Send rows of received tiles back to their homes."""
        plan = self.plan
        parcels = []
        for tensors, back, due in (
            (q, plan.received.query_tokens, plan.sent.query_tokens),
            (kv or [], plan.received.row_end, plan.sent.row_end),
        ):
            counts = tokens_by_peer(plan.received_from, back)
            incoming = tokens_by_peer(plan.sent_to, due)
            for x in tensors:
                by_peer = [[rows] for rows in torch.split(x, counts)]
                parcels.append(Parcel(like=x, outgoing=by_peer, incoming=incoming))
        return Exchange(parcels, self._group)

    def put_queries(self, home: Tensor, rows: Tensor) -> None:
        """Write rows that came back, tile after tile, where the tiles' queries lie."""
        parts = torch.split(rows, self.plan.sent.query_tokens.tolist())
        for own, part in zip(self._queries, parts, strict=True):
            home[own] = part

    def add_keys(self, home: Tensor, rows: Tensor) -> None:
        """Add rows that came back where the tiles' keys lie; tiles of a document share some."""
        parts = torch.split(rows, self.plan.sent.row_end.tolist())
        for own, part in zip(self._keys, parts, strict=True):
            home[own] += part

    def wait(self, exchange: Exchange) -> list[Tensor]:
        """Wait for an exchange and let the observer know for how long."""
        observer = self.runner.observer
        mark = observer.start() if observer else None
        rows = exchange.wait()
        if observer:
            observer.exchange(mark, exchange.sent_bytes)
        return rows


def _halves(tiles: TileRows) -> tuple[slice, slice]:
    """Cut tiles where half of their causal pairs are done: work to hide the exchanges behind."""
    pairs = tiles.features()[:, 3].cumsum()
    middle = int((2 * pairs < pairs[-1]).sum()) + 1 if len(pairs) else 0
    return slice(0, middle), slice(middle, None)
