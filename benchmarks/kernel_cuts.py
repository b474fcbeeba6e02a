"""What cutting costs the kernels: tiles as planned against the same work uncut, in one process.

CPU seconds of kernel calls on one thread, over all ranks' tiles of many cells, interleaved.

Shapes: t query rows and s keys of a set of tiles; H query heads; G kv heads; D head dim.
"""

import argparse
import math
import time
from typing import Any

import numpy as np
import torch

from benchmarks.lengths import Int64
from benchmarks.options import add_cells, add_layer, add_plan, drawn_cells, plan_settings
from benchmarks.runs import ratio
from benchmarks.tables import Row
from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.kernel import AttentionSpec, choose_kernel
from libra.attention.layout import BatchLayout
from libra.attention.lowering import LoweredPlan, TileBatch, lower
from libra.attention.observer import KernelKind, Traffic
from libra.attention.plan import Plan, PlanSettings, home_plan, plan_cell
from libra.attention.runner import TileRunner, TileTensors, empty_logsumexp

_DTYPES = ("float32", "bfloat16")

QUICK = {"packs": 4, "tokens": 2048}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cells(parser, packs=12)
    add_layer(parser, heads=[(8, 8), (8, 2)])
    add_plan(parser)
    parser.add_argument("--dtypes", nargs="+", choices=_DTYPES, default=_DTYPES)


def measure(args: argparse.Namespace) -> list[Row]:
    """Return kernel seconds as planned over those uncut, and uncut over itself."""
    torch.set_num_threads(1)
    cells = drawn_cells(args, args.pool, count=args.packs)
    settings = plan_settings(args)
    rows: list[Row] = []
    for dtype in args.dtypes:
        for query, kv in args.heads:
            heads = HeadSplit(query_heads=query, kv_heads=kv, cp=args.cp)
            bench = _Kernels(heads, args.head_dim, args.tokens, getattr(torch, dtype), args.seed)
            which: Row = {"dtype": dtype, "H/G": f"{query}/{kv}"}
            rows.append({**which, **_figures(bench, cells, settings)})
    return rows


def _figures(bench: "_Kernels", cells: list[list[Int64]], settings: PlanSettings) -> Row:
    seconds, moved = [], 0
    for index, cell in enumerate([cells[0], *cells]):
        plan = plan_cell(cell, bench.heads, FLOPS_COST, settings)
        home = home_plan(cell, bench.heads, FLOPS_COST)
        runs = [home, plan, home]
        order = range(3) if index % 2 else reversed(range(3))
        spent = {own: bench.spent(runs[own]) for own in order}
        if index:  # the first warms up
            seconds.append([spent[own] for own in range(3)])
            moved += len(plan.moves)
    first, planned, again = np.array(seconds).T
    over, error = ratio(planned, (first + again) / 2)
    null, null_error = ratio(again, first)
    return {
        "packs": len(seconds),
        "moved": moved,
        "planned / uncut": over,
        "std error": error,
        "uncut / itself": null,
        "its std error": null_error,
    }


class _Kernels:
    """All bins' kernel calls of a plan, one bin after the other on the same tensors."""

    def __init__(
        self, heads: HeadSplit, head_dim: int, tokens: int, dtype: torch.dtype, seed: int
    ) -> None:
        self.heads = heads
        self._head_dim, self._dtype = head_dim, dtype
        self._generator = torch.Generator().manual_seed(seed)
        self._clock = _KernelClock()
        spec = AttentionSpec(scale=1 / math.sqrt(head_dim))
        kernel = choose_kernel(torch.device("cpu"), dtype, head_dim, spec)
        self._runner = TileRunner(kernel, spec, self._clock)
        query, kv = (
            max(end - begin for begin, end in map(split, range(heads.cp)))
            for split in (heads.query_range, heads.kv_range)
        )
        self._own = self._tensors((tokens, query), (tokens, kv))

    def spent(self, plan: Plan) -> float:
        """Return CPU seconds of forward and backward kernel calls of all bins."""
        self._clock.seconds = 0.0
        for own in range(plan.bins):
            self._run(lower(plan, own))
        return self._clock.seconds

    def _run(self, lowered: LoweredPlan) -> None:
        self._attend(self._own, lowered.first + lowered.rest)
        for parcel in (parcel for wave in lowered.waves for parcel in wave.received):
            theirs = self._tensors(parcel.query_shape, parcel.key_shape)
            self._attend(theirs, (parcel.batch,))

    def _attend(self, tensors: TileTensors, batches: tuple[TileBatch, ...]) -> None:
        grads = (
            torch.empty_like(tensors.q),
            torch.empty_like(tensors.k),
            torch.empty_like(tensors.v),
        )
        self._runner.forward(tensors, batches)
        self._runner.backward(tensors.q, tensors, grads, batches)

    def _tensors(self, queries: tuple[int, int], keys: tuple[int, int]) -> TileTensors:
        q, k, v = (
            torch.randn(*shape, self._head_dim, generator=self._generator).to(self._dtype)
            for shape in (queries, keys, keys)
        )
        return TileTensors(q, k, v, torch.empty_like(q), empty_logsumexp(q))


class _KernelClock:
    """Add up the thread's CPU seconds of kernel calls; implements ``Observer``."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def begin(self, layout: BatchLayout) -> None: ...

    def start(self) -> float:
        return time.thread_time()

    def kernel(self, mark: Any, kind: KernelKind, features: tuple[int, int, int, int]) -> None:
        self.seconds += time.thread_time() - mark

    def exchange(self, issued: Any, mark: Any, traffic: Traffic) -> None: ...

    def mismatch(self) -> None: ...
