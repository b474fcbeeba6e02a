"""One attention layer on one rank, forward and backward, under several plans in turn.

All variants of a pack run one after the other, in one order for even packs and in the other for
odd ones: what the machine does meanwhile meets them alike.

Shapes: T tokens of a sequence; t rows of a rank's shard; H query heads; G kv heads; D head dim;
P sequences of a pool; V variants; F = len(FIGURES) figures of a run.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.lengths import Int64
from libra.agent.meter import StepMeter
from libra.attention.cost import FLOPS_COST, TileCost
from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools

Cell = Sequence[Int64]
Float64 = NDArray[np.float64]

# A step's seconds are from a barrier to the rank's own end.
FIGURES = ("seconds", "wait_s", "kernel_wall_s", "kernel_cpu_s", "sent_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCase:
    """A layer and the ranks that run it."""

    heads: HeadSplit
    head_dim: int
    tokens: int
    pool: int
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.pool * self.heads.cp


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to run a pack.

    Attributes:
        name: what its figures are called.
        home: as plain Ulysses.
        remote_first: compute what others sent before anything of one's own, so that nothing
            hides its arrival.
        settings, cost: of the plan.
    """

    name: str
    home: bool = False
    remote_first: bool = False
    settings: PlanSettings
    cost: TileCost = FLOPS_COST


class Layer:
    """This rank's layer; collective over all ranks of the default group.

    Attributes:
        attention: the operator.
        meter: watches it.
    """

    def __init__(self, case: LayerCase) -> None:
        self._case = case
        mesh = init_device_mesh("cpu", (case.pool, case.heads.cp), mesh_dim_names=("dp", "cp"))
        self.pools = SequencePools(mesh, case.pool)
        self.attention = PooledAttention(self.pools)
        self.meter = StepMeter()

    def layout(self, cell: Cell, variant: Variant, step: int) -> BatchLayout:
        """Return this rank's layout of a cell."""
        layout = make_layout(
            cell,
            self.pools.place,
            tokens=self._case.tokens,
            heads=self._case.heads,
            cp_rank=self.pools.cp_rank,
            cost=variant.cost,
            settings=variant.settings,
            step=step,
        )
        if variant.remote_first and layout.plan.moved:
            plan = layout.plan
            return replace(layout, plan=replace(plan, first=(), rest=plan.first + plan.rest))
        return layout

    def run(self, layout: BatchLayout, *, home: bool) -> Float64:
        """Return [F] figures of one forward and backward; all variants get the same inputs."""
        case = self._case
        rows = layout.shard.stop - layout.shard.start
        generator = torch.Generator().manual_seed(case.seed + layout.step)
        query, kv = case.heads.query_heads, case.heads.kv_heads
        q, k, v, grad = (
            torch.randn(rows, heads, case.head_dim, generator=generator)
            for heads in (query, kv, kv, query)
        )
        for leaf in (q, k, v):
            leaf.requires_grad_()
        self.attention.observer, self.attention.use_home_plan = self.meter, home
        # A training job's data loader does so too.
        self.attention.prepare(layout)
        dist.barrier()
        start = time.perf_counter()
        self.attention(q, k, v, layout).backward(grad)
        seconds = time.perf_counter() - start
        totals = self.meter.end_step(seconds)
        assert totals is not None
        meter = self.meter
        kernels = meter.kernel_wall_seconds, meter.kernel_cpu_seconds
        return np.array([seconds, totals.wait_seconds, *kernels, totals.sent_bytes])


def run_interleaved(layer: Layer, cells: Sequence[Cell], variants: Sequence[Variant]) -> Float64:
    """Return [packs, V, F] figures of this rank; the first pack is run once more before."""
    figures = np.zeros((len(cells), len(variants), len(FIGURES)))
    for index in (0, *range(len(cells))):
        layouts = [layer.layout(cells[index], variant, index) for variant in variants]
        order = range(len(variants)) if index % 2 else reversed(range(len(variants)))
        for own in order:
            figures[index, own] = layer.run(layouts[own], home=variants[own].home)
    return figures


def run_case(
    rank: int, case: LayerCase, cells: Sequence[Cell], variants: Sequence[Variant]
) -> Float64:
    """Run all of a case on one rank: what ranks are started with."""
    return run_interleaved(Layer(case), cells, variants)
