"""The autograd function at the heart: a pool's tiles, some of them computed by other ranks.

A wave is sent for when the one before it has arrived, so that each has the wire for itself and
the first comes soonest; ranks that receive nothing begin all exchanges at once, and compute.

Shapes: T tokens of a rank's own sequence; h query heads, g kv heads that it holds; D head dim.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from libra.attention.exchange import QKV, QUERIES, Packing
from libra.attention.lowering import LoweredPlan, Wave
from libra.attention.runner import TileRunner, TileTensors, empty_logsumexp
from libra.attention.transport import Transport


def pool_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: LoweredPlan,
    transport: Transport,
    runner: TileRunner,
) -> Tensor:
    """Return out [T, h, D] of q [T, h, D], k and v [T, g, D]; collective when tiles move."""
    out: Tensor = _PooledTiles.apply(q, k, v, plan, transport, runner)  # type: ignore[no-untyped-call]
    return out


class _PooledTiles(torch.autograd.Function):
    """Attention over a plan's tiles.

    forward:  out[rows] = attend(q[rows], k[keys], v[keys])      for each tile, here or elsewhere
    backward: dq[rows] = ..., dk[keys] += ..., dv[keys] += ...   where forward was computed

    A rank that computes others' tiles keeps their results until backward, and their inputs too
    unless these are sent again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: LoweredPlan,
        transport: Transport,
        runner: TileRunner,
    ) -> Tensor:
        own = TileTensors(q, k, v, torch.empty_like(q), empty_logsumexp(q))
        keep: list[Tensor] = []
        with transport.roll_call.guard():
            _forward(own, plan, transport, runner, keep)
        own.out[plan.tokens :] = 0
        ctx.plan, ctx.transport, ctx.runner = plan, transport, runner
        ctx.save_for_backward(q, k, v, own.out, own.logsumexp, *keep)
        return own.out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        plan: LoweredPlan = ctx.plan
        saved = ctx.saved_tensors
        own = TileTensors(*saved[:5])
        # Keys of tiles that went away get no gradient here but what comes back.
        dq, dk, dv = torch.empty_like(own.q), torch.zeros_like(own.k), torch.zeros_like(own.v)
        with ctx.transport.roll_call.guard():
            _backward(
                grads[0].contiguous(), own, (dq, dk, dv), plan, ctx.transport, ctx.runner, saved[5:]
            )
        dq[plan.tokens :] = 0
        return dq, dk, dv, None, None, None


def _forward(
    own: TileTensors,
    plan: LoweredPlan,
    transport: Transport,
    runner: TileRunner,
    keep: list[Tensor],
) -> None:
    """Compute own tiles and others', and append to ``keep`` what backward needs of theirs."""
    dim, kept = own.q.shape[2], not transport.resend
    send = partial(transport.dispatch, sides=QKV, tensors=[own.q, own.k, own.v], kept=kept)
    away = [send(wave) for wave in plan.waves[:1]]
    runner.forward(own, plan.first)
    back = []
    for wave, following in zip_longest(plan.waves, plan.waves[1:]):
        exchange = away[-1]
        if wave.received:
            transport.wait(exchange)
        away += [send(following)] if following else []
        results = own.q.new_empty(Packing(wave.received, QUERIES, dim).elements)
        logsumexps = own.logsumexp.new_empty(Packing(wave.received, QUERIES, 1).elements)
        if wave.received:
            arrived = Packing(wave.received, QKV, dim).views(exchange.incoming)
            for (parcel, qkv), theirs in zip(
                arrived, _results(wave, dim, results, logsumexps), strict=True
            ):
                q, k, v = qkv
                runner.forward(TileTensors(q, k, v, *theirs), [parcel.batch])
            keep += [results, logsumexps, *([exchange.incoming] if kept else [])]
        back.append(transport.give_back(wave, QUERIES, results, dim))
    runner.forward(own, plan.rest)
    for exchange in back:
        transport.wait(exchange)
        exchange.received.scatter(exchange.incoming, [own.out], add=[False])
        transport.reuse(exchange.incoming)
    for exchange in away:
        transport.wait(exchange)
        transport.reuse(exchange.outgoing, *([] if kept else [exchange.incoming]))


def _backward(
    grad_out: Tensor,
    own: TileTensors,
    grads: tuple[Tensor, Tensor, Tensor],
    plan: LoweredPlan,
    transport: Transport,
    runner: TileRunner,
    kept: Sequence[Tensor],
) -> None:
    dim, saved = own.q.shape[2], iter(kept)
    resent = (own.q, own.k, own.v) if transport.resend else ()
    sides = (*QKV, *QUERIES) if transport.resend else QUERIES
    send = partial(transport.dispatch, sides=sides, tensors=[*resent, grad_out])
    away = [send(wave) for wave in plan.waves[:1]]
    runner.backward(grad_out, own, grads, plan.first)
    back = []
    for wave, following in zip_longest(plan.waves, plan.waves[1:]):
        exchange = away[-1]
        if wave.received:
            transport.wait(exchange)
        away += [send(following)] if following else []
        results = transport.take(Packing(wave.received, QKV, dim).elements, own.q)
        if wave.received:
            theirs = _results(wave, dim, next(saved), next(saved))
            inputs = None if resent else Packing(wave.received, QKV, dim).views(next(saved))
            arrived = Packing(wave.received, sides, dim).views(exchange.incoming)
            leaving = Packing(wave.received, QKV, dim).views(results)
            for (parcel, (*qkv, grad)), (out, logsumexp), (_, (dq, dk, dv)) in zip(
                arrived, theirs, leaving, strict=True
            ):
                q, k, v = qkv if inputs is None else next(inputs)[1]
                tensors = TileTensors(q, k, v, out, logsumexp)
                runner.backward(grad, tensors, (dq, dk, dv), [parcel.batch])
        back.append(transport.give_back(wave, QKV, results, dim))
    runner.backward(grad_out, own, grads, plan.rest)
    for exchange in back:
        transport.wait(exchange)
        exchange.received.scatter(exchange.incoming, grads, add=[False, True, True])
        transport.reuse(exchange.incoming, exchange.outgoing)
    for exchange in away:
        transport.wait(exchange)
        transport.reuse(exchange.outgoing, exchange.incoming)


def _results(
    wave: Wave, dim: int, results: Tensor, logsumexps: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield out [n, h, D] and log-sum-exp [h, n] of each received parcel, in flat buffers."""
    outs = Packing(wave.received, QUERIES, dim).views(results)
    flat = Packing(wave.received, QUERIES, 1).views(logsumexps)
    for (_, (out,)), (_, (logsumexp,)) in zip(outs, flat, strict=True):
        yield out, logsumexp.view(out.shape[1], out.shape[0])
