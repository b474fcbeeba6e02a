"""Steps of one layer on real ranks: plain Ulysses and Libra, interleaved on the same packs.

Forward and backward, a step as long as its slowest rank's; figures are ratios of sums over packs.
perfect: what perfect balance at no cost would give. share: speed-up over that. exposed exchange:
of Libra's step, on the rank that waits longest. slower: packs on which Libra lost more than two
runs of plain Ulysses differ (noise, on 19 of 20 packs). skew: kernel seconds, slowest rank over
mean. kernels: Libra's kernel seconds over plain Ulysses'. A pack is steady if the machine treated
its runs alike, as the demo judges it.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch.distributed as dist

from benchmarks.layer import Cell, Float64, Layer, LayerCase, Variant, run_interleaved
from benchmarks.options import add_cells, add_layer, add_plan, drawn_cells, plan_settings, positive
from benchmarks.runs import Runs, gains
from benchmarks.tables import Row
from libra.attention.cost import TileCost
from libra.attention.heads import HeadSplit
from libra.attention.observer import KernelKind
from libra.attention.plan import PlanSettings
from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from tests.ranks import run_ranks

QUICK = {"packs": 4, "fit_packs": 16, "tokens": 2048}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cells(parser, packs=100)
    add_layer(parser, heads=[(8, 8), (8, 2)])
    add_plan(parser)
    parser.add_argument(
        "--measured", action="store_true", help="plan with a fitted cost model too, beside FLOPs"
    )
    parser.add_argument(
        "--fit-packs", type=positive, default=20, help="packs to fit it on (%(default)s)"
    )


def measure(args: argparse.Namespace) -> list[Row]:
    """Return figures over the steady packs and over all of them, for each model and plan."""
    settings = plan_settings(args)
    fit_packs = args.fit_packs if args.measured else 0
    cells = drawn_cells(args, args.pool, count=fit_packs + args.packs)
    rows: list[Row] = []
    for query, kv in args.heads:
        case = LayerCase(
            heads=HeadSplit(query_heads=query, kv_heads=kv, cp=args.cp),
            head_dim=args.head_dim,
            tokens=args.tokens,
            pool=args.pool,
            seed=args.seed,
        )
        work = case, cells[:fit_packs], cells[fit_packs:], settings
        figures = run_ranks(_rank, case.ranks, *work, timeout_s=args.timeout_s)
        if figures[0] is None:
            raise ValueError(f"fit_packs={fit_packs}: must be more, for enough kernel calls to fit")
        rows += _rows(f"{query}/{kv}", Runs(np.stack(figures)))
    return rows


def _rank(
    rank: int,
    case: LayerCase,
    fit_cells: Sequence[Cell],
    cells: Sequence[Cell],
    settings: PlanSettings,
) -> Float64 | None:
    """Return this rank's figures, None where there is too little for a fit."""
    layer = Layer(case)
    home = Variant(name="home", home=True, settings=settings)
    variants = [home, Variant(name="FLOPs", settings=settings)]
    if fit_cells:
        cost = fitted_cost(layer, fit_cells, home)
        if cost is None:
            return None
        variants.append(Variant(name="measured", settings=settings, cost=cost))
    # Plain Ulysses at both ends: a steady change of the machine's speed cancels.
    return run_interleaved(layer, cells, [*variants, home])


def fitted_cost(layer: Layer, cells: Sequence[Cell], home: Variant) -> TileCost | None:
    """Return forward and backward cost fitted to all ranks' kernel calls, as the balancer does.

    None, on all ranks, where some kind of kernel was called too rarely for a fit.
    """
    for index, cell in enumerate((cells[0], *cells)):
        layer.run(layer.layout(cell, home, index), home=True)
        if not index:
            layer.meter.take_moments()  # warming up
    own = [(moments.kind, moments.sums) for moments in layer.meter.take_moments()]
    everyone: list[list[tuple[KernelKind, list[float]]]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    models: dict[KernelKind, QuadraticCostModel] = defaultdict(QuadraticCostModel)
    for kind, sums in (observed for rank in everyone for observed in rank):
        models[kind].merge(Moments(sums))
    if any(not model.is_calibrated_ for model in models.values()):
        return None
    coefficients = np.sum([model.coef_ for model in models.values()], axis=0)
    return TileCost.from_seconds(coefficients.tolist())


def _rows(heads: str, runs: Runs) -> list[Row]:
    last = runs.figures.shape[2] - 1
    steady = runs.steady()
    rows: list[Row] = []
    for variant, name in zip(range(1, last), ("FLOPs", "measured"), strict=False):
        for counted, packs in (("steady", steady), ("all", np.ones_like(steady))):
            chosen = runs.only(packs)
            which: Row = {"H/G": heads, "cost": name, "packs": counted, "number": len(chosen)}
            left: Row = {"unsteady": int((~steady).sum())}
            rows.append({**which, **left, **gains(chosen, variant, (0, last))})
    return rows
