"""Peak bytes of a rank's tensors in forward and backward of one layer, Libra over plain Ulysses.

Counted by torch's profiler from every allocation and release of the rank's thread, kernels' own
scratch included, on real ranks. Exchange buffers that the operator keeps from step to step are
counted from the start.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from torch.profiler import ProfilerActivity, profile

from benchmarks.layer import Cell, Float64, Layer, LayerCase, Variant
from benchmarks.options import add_cells, add_layer, drawn_cells
from benchmarks.plans import held_share
from benchmarks.tables import Row, Value
from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout
from libra.attention.plan import PlanSettings, plan_cell
from tests.ranks import run_ranks

_MIB = 1 << 20

QUICK = {"packs": 3, "tokens": 2048}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cells(parser, packs=30)
    add_layer(parser, heads=[(8, 8), (8, 2), (32, 8)])
    default = PlanSettings()
    add = parser.add_argument
    add("--block-rows", type=int, default=default.block_rows, help="(%(default)s)")
    add("--memory-permille", type=int, nargs="+", default=[1250, default.memory_permille])


def measure(args: argparse.Namespace) -> list[Row]:
    """Return a row for each model and cap."""
    cells = drawn_cells(args, args.pool, count=args.packs)
    caps = [
        PlanSettings(block_rows=args.block_rows, memory_permille=permille)
        for permille in args.memory_permille
    ]
    rows: list[Row] = []
    for query, kv in args.heads:
        case = LayerCase(
            heads=HeadSplit(query_heads=query, kv_heads=kv, cp=args.cp),
            head_dim=args.head_dim,
            tokens=args.tokens,
            pool=args.pool,
            seed=args.seed,
        )
        for settings in caps:
            work = case, cells, settings
            ranks = run_ranks(_rank, case.ranks, *work, timeout_s=args.timeout_s)
            rows.append({"H/G": f"{query}/{kv}", **_row(np.stack(ranks), cells, case, settings)})
    return rows


def _rank(rank: int, case: LayerCase, cells: Sequence[Cell], settings: PlanSettings) -> Float64:
    """Return [packs, 3]: peak bytes under plain Ulysses and Libra, and bytes kept before."""
    variant = Variant(name="Libra", settings=settings)
    # A layer each: plain Ulysses must not be charged with Libra's buffers.
    plain, libra = Layer(case), Layer(case)
    figures = []
    for step, cell in enumerate(cells):
        kept = libra.attention._workspace.free_bytes
        layout = libra.layout(cell, variant, step)
        peaks = _peak_bytes(plain, layout, home=True), _peak_bytes(libra, layout, home=False)
        figures.append([peaks[0], kept + peaks[1], kept])
    return np.array(figures, dtype=np.float64)


def _peak_bytes(layer: Layer, layout: BatchLayout, *, home: bool) -> int:
    """Return the most bytes held at a time beyond those held before, the inputs included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        layer.run(layout, home=home)
    assert run.profiler is not None
    assert run.profiler.kineto_results is not None
    events = run.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return int(np.cumsum([change for _, change in changes]).max(initial=0))


def _row(
    figures: Float64, cells: Sequence[Cell], case: LayerCase, settings: PlanSettings
) -> dict[str, Value]:
    """Return one row of [ranks, packs, 3] figures: each pack's fullest rank."""
    home, libra, kept = figures.max(axis=0).T
    shares = [held_share(plan_cell(cell, case.heads, FLOPS_COST, settings)) for cell in cells]
    cap = settings.memory_permille / 1000
    return {
        "cap": cap,
        "packs": len(cells),
        "Ulysses MiB": float(np.median(home)) / _MIB,
        "median": float(np.median(libra / home)),
        "p99": float(np.quantile(libra / home, 0.99)),
        "max": float((libra / home).max()),
        "of it kept buffers": float(np.median(kept / home)),
        "held, max": max(shares),
        "above cap": sum(share > cap for share in shares),
    }
