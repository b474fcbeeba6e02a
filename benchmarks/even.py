"""What Libra costs where there is nothing to even out: all documents equal, so all stays home."""

import argparse

import numpy as np

from benchmarks.layer import LayerCase, Variant, run_case
from benchmarks.options import add_layer, add_plan, plan_settings, positive
from benchmarks.runs import Runs, noise, ratio
from benchmarks.tables import Row
from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.plan import plan_cell
from tests.ranks import run_ranks

QUICK = {"packs": 4, "tokens": 2048}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_layer(parser, heads=[(8, 8), (8, 2)])
    add_plan(parser)
    add = parser.add_argument
    add("--tokens", type=positive, default=16384, help="of a packed sequence (%(default)s)")
    add("--documents", type=positive, default=16, help="of a packed sequence (%(default)s)")
    add("--packs", type=positive, default=40, help="(%(default)s)")
    add("--seed", type=int, default=0)


def measure(args: argparse.Namespace) -> list[Row]:
    """Return Libra's steps over plain Ulysses', and plain Ulysses' over its own."""
    if args.tokens % args.documents:
        raise ValueError(f"documents={args.documents}: must divide tokens={args.tokens}")
    length = args.tokens // args.documents
    cell = [np.full(args.documents, length, dtype=np.int64)] * args.pool
    settings = plan_settings(args)
    home = Variant(name="home", home=True, settings=settings)
    variants = [home, Variant(name="Libra", settings=settings), home]
    rows: list[Row] = []
    for query, kv in args.heads:
        heads = HeadSplit(query_heads=query, kv_heads=kv, cp=args.cp)
        case = LayerCase(
            heads=heads,
            head_dim=args.head_dim,
            tokens=args.tokens,
            pool=args.pool,
            seed=args.seed,
        )
        work = case, [cell] * args.packs, variants
        figures = run_ranks(run_case, case.ranks, *work, timeout_s=args.timeout_s)
        moved = len(plan_cell(cell, heads, FLOPS_COST, settings).moves)
        rows.append({"H/G": f"{query}/{kv}", "moved": moved, **_figures(Runs(np.stack(figures)))})
    return rows


def _figures(runs: Runs) -> Row:
    first, libra, again = (runs.slowest(own) for own in range(3))
    over, error = ratio(libra, (first + again) / 2)
    null, null_error = ratio(again, first)
    return {
        "packs": len(runs),
        "unsteady": int((~runs.steady()).sum()),
        "Libra / Ulysses": over,
        "std error": error,
        "Ulysses / itself": null,
        "its std error": null_error,
        "noise of a step": noise(runs, (0, 2)),
    }
