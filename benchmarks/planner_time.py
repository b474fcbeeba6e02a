"""How long a rank plans: assignment, lowering, digest and home plan of one cell, on one thread.

Shapes: P sequences of a pool; C ranks of a CP group.
"""

import argparse
import time

import numpy as np

from benchmarks.lengths import Family, family
from benchmarks.options import add_plan, plan_settings, positive
from benchmarks.tables import Row
from libra.attention.heads import HeadSplit
from libra.attention.layout import make_layout
from libra.attention.plan import PlanSettings

QUICK = {"cells": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--lengths", default="libra", metavar="FILE|NAME", help="(%(default)s)")
    add("--documents", type=positive, nargs="+", default=[200, 1000], help="of a sequence")
    add("--pool", type=positive, default=8, help="sequences of a pool, P (%(default)s)")
    add("--cp", type=positive, default=8, help="ranks of a CP group, C (%(default)s)")
    add("--query-heads", type=positive, default=32)
    add("--kv-heads", type=positive, default=8)
    add("--cells", type=positive, default=200, help="to plan (%(default)s)")
    add("--seed", type=int, default=0)
    add_plan(parser)


def measure(args: argparse.Namespace) -> list[Row]:
    """Return milliseconds of a layout for each number of documents."""
    draw, settings = family(args.lengths), plan_settings(args)
    heads = HeadSplit(query_heads=args.query_heads, kv_heads=args.kv_heads, cp=args.cp)
    rows: list[Row] = []
    for documents in args.documents:
        rng = np.random.default_rng(args.seed)
        cells = (documents, args.pool, args.cells)
        moved, milliseconds = _planned(draw, rng, cells, heads, settings)
        rows.append(
            {
                "ranks": args.pool * args.cp,
                "sequences x documents": f"{args.pool} x {documents}",
                "cells": args.cells,
                "moved, median": float(np.median(moved)),
                "median ms": float(np.median(milliseconds)),
                "min ms": float(np.min(milliseconds)),
                "p99 ms": float(np.quantile(milliseconds, 0.99)),
            }
        )
    return rows


def _planned(
    draw: Family,
    rng: np.random.Generator,
    cells: tuple[int, int, int],
    heads: HeadSplit,
    settings: PlanSettings,
) -> tuple[list[int], list[float]]:
    """Return how many tiles move in each cell, and the milliseconds its layout took.

    No cell comes twice, so none is found in the cache; the first one warms up.
    """
    documents, pool, count = cells
    moved, milliseconds = [], []
    for index in range(count + 1):
        cell = [draw(rng, documents) for _ in range(pool)]
        tokens = max(int(part.sum()) for part in cell)
        start = time.perf_counter()
        layout = make_layout(cell, 0, tokens=tokens, heads=heads, settings=settings, step=index)
        spent = time.perf_counter() - start
        if index:
            moved.append(layout.plan.moved)
            milliseconds.append(1e3 * spent)
    return moved, milliseconds
