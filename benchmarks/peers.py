"""The operator's home plan against DeepSpeed's Ulysses attention, on one document, interleaved.

Shapes: T tokens of the sequence, t of a rank's shard; H query heads; G kv heads; D head dim.
"""

import argparse
import time
from importlib.util import find_spec

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.layer import Float64, LayerCase
from benchmarks.options import add_layer, positive
from benchmarks.runs import ratio
from benchmarks.tables import Row, Value
from libra.attention.heads import HeadSplit
from libra.attention.layout import make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.deepspeed_on_cpu import Attention, deepspeed_attention
from tests.ranks import run_ranks

QUICK = {"packs": 3, "tokens": 1024}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_layer(parser, heads=[(8, 8), (8, 2)], cp=2, pool=1)
    add = parser.add_argument
    add("--tokens", type=positive, default=8192, help="of the document (%(default)s)")
    add("--packs", type=positive, default=20, help="steps (%(default)s)")
    add("--seed", type=int, default=0)


def measure(args: argparse.Namespace) -> list[Row]:
    """Return the operator's steps over DeepSpeed's, or one row that says why there are none."""
    if find_spec("deepspeed") is None:
        return [{"peers": "not measured, deepspeed is not installed: make test-peers does so"}]
    if args.pool != 1:
        raise ValueError(f"pool={args.pool}: must be 1, DeepSpeed knows no other")
    if args.tokens % args.cp:
        raise ValueError(f"tokens={args.tokens}: must be a multiple of cp={args.cp}")
    rows: list[Row] = []
    for query, kv in args.heads:
        case = LayerCase(
            heads=HeadSplit(query_heads=query, kv_heads=kv, cp=args.cp),
            head_dim=args.head_dim,
            tokens=args.tokens,
            pool=1,
            seed=args.seed,
        )
        ranks = run_ranks(_rank, case.ranks, case, args.packs, timeout_s=args.timeout_s)
        # A step takes as long as its slowest rank.
        seconds = np.stack(ranks).max(axis=0)
        rows.append({"H/G": f"{query}/{kv}", **_figures(seconds)})
    return rows


def _figures(seconds: Float64) -> dict[str, Value]:
    """Return figures of [steps, 3] seconds: DeepSpeed, the operator, DeepSpeed again."""
    first, own, again = seconds.T
    over, error = ratio(own, (first + again) / 2)
    null, null_error = ratio(again, first)
    return {
        "steps": len(seconds),
        "DeepSpeed s": float(np.median(first)),
        "Libra at home / DeepSpeed": over,
        "std error": error,
        "DeepSpeed / itself": null,
        "its std error": null_error,
    }


def _rank(rank: int, case: LayerCase, steps: int) -> Float64:
    mesh = init_device_mesh("cpu", (1, case.heads.cp), mesh_dim_names=("dp", "cp"))
    peer = deepspeed_attention(mesh)
    both = [peer, _pooled(SequencePools(mesh, 1), case), peer]
    seconds = np.zeros((steps, len(both)))
    for index in (0, *range(steps)):
        order = range(len(both)) if index % 2 else reversed(range(len(both)))
        for own in order:
            seconds[index, own] = _spent(both[own], case, index)
    return seconds


def _pooled(pools: SequencePools, case: LayerCase) -> Attention:
    attention = PooledAttention(pools)
    layout = make_layout(
        [np.array([case.tokens])],
        pools.place,
        tokens=case.tokens,
        heads=case.heads,
        cp_rank=pools.cp_rank,
        settings=PlanSettings(pooling=False),
    )
    return lambda q, k, v: attention(q, k, v, layout)


def _spent(attention: Attention, case: LayerCase, step: int) -> float:
    """Return seconds of forward and backward, from a barrier to this rank's end."""
    generator = torch.Generator().manual_seed(case.seed + step)
    query, kv = case.heads.query_heads, case.heads.kv_heads
    q, k, v, grad = (
        torch.randn(case.tokens // case.heads.cp, heads, case.head_dim, generator=generator)
        for heads in (query, kv, kv, query)
    )
    for leaf in (q, k, v):
        leaf.requires_grad_()
    dist.barrier()
    start = time.perf_counter()
    attention(q, k, v).backward(grad)
    return time.perf_counter() - start
