"""What balancing gains on two real ranks: the operator alone, plain Ulysses beside Libra.

Forward and backward of one attention layer on two gloo ranks with one thread each, on packs of
long-tailed lengths, under both plans in alternating order. All figures are ratios of sums over
interleaved runs: single runs on a shared machine scatter by a tenth.

    .venv/bin/python benchmarks/bench_attention.py [--packs 12] [--tokens 8192]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

from libra.agent.meter import StepMeter
from libra.attention.cost import FLOPS_COST
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools

RANKS = 2
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8192)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (args.packs, args.tokens, folder), nprocs=RANKS)
        figures = np.stack([np.load(Path(folder, f"{rank}.npy")) for rank in range(RANKS)])
    _report(figures)


def _rank(rank: int, packs: int, tokens: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = Path(folder, "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("dp", "cp"))
    attention = PooledAttention(SequencePools(mesh, RANKS))
    rng = np.random.default_rng(0)
    layouts = [_layout(rng, rank, tokens) for _ in range(packs)]
    _run(attention, layouts[0], home=True)
    figures = []
    for index, layout in enumerate(layouts):
        order = (True, False) if index % 2 else (False, True)
        runs = {home: _run(attention, layout, home=home) for home in order}
        figures.append((runs[True], runs[False]))
    np.save(Path(folder, f"{rank}.npy"), np.array(figures))
    dist.destroy_process_group()


def _layout(rng: np.random.Generator, rank: int, tokens: int) -> BatchLayout:
    """Two packed sequences of log-normal lengths, median 800, sigma 1.5, cut at the end."""
    cell = []
    for _ in range(RANKS):
        ends = np.cumsum(rng.lognormal(np.log(800), 1.5, tokens).astype(np.int64) + 1)
        cell.append(
            np.diff(np.minimum(ends, tokens)[: np.searchsorted(ends, tokens) + 1], prepend=0)
        )
    return make_layout(
        cell,
        rank,
        tokens=tokens,
        cost=FLOPS_COST,
        settings=PlanSettings(block_rows=32, query_heads_per_kv_head=HEADS // KV_HEADS),
    )


def _run(attention: PooledAttention, layout: BatchLayout, *, home: bool) -> tuple[float, ...]:
    """Return step seconds, kernel seconds, exposed exchange seconds and sent bytes."""
    shapes = [(layout.tokens, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    grad = torch.randn(shapes[0])
    meter = StepMeter()
    attention.observer, attention.use_home_plan = meter, home
    dist.barrier()
    start = time.perf_counter()
    attention(q, k, v, layout).backward(grad)
    seconds = time.perf_counter() - start
    totals = meter.end_step(seconds)
    assert totals is not None
    return seconds, meter.kernel_wall_seconds, totals.wait_seconds, float(totals.sent_bytes)


def _report(figures: np.ndarray) -> None:
    """Print ratios; figures are [rank, pack, plan, figure], plan 0 is plain Ulysses."""
    step = figures[..., 0].max(axis=0).sum(axis=0)
    kernel = figures[..., 1]
    skew = (kernel.max(axis=0) / kernel.mean(axis=0)).mean(axis=0)
    surplus = (kernel.max(axis=0) - kernel.mean(axis=0))[:, 0].sum()
    perfect = step[0] / (step[0] - surplus)
    inflation = kernel[..., 1].sum() / kernel[..., 0].sum()
    exposed = figures[..., 2].max(axis=0)[:, 1].sum() / step[1]
    sent_mib = figures[:, :, 1, 3].max(axis=0).mean() / 2**20
    lines = [
        f"packs                                   {figures.shape[1]}",
        f"skew, plain Ulysses / Libra             {skew[0]:.3f} / {skew[1]:.3f}",
        f"speed-up / that of perfect balance      {step[0] / step[1]:.3f} / {perfect:.3f}",
        f"kernel seconds, Libra / plain Ulysses   {inflation:.3f}",
        f"exposed exchange / step                 {exposed:.3f}",
        f"sent by the busiest rank, mean          {sent_mib:.1f} MiB",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
