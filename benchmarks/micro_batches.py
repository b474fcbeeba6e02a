"""How long a step of several micro-batches takes, by when ranks meet and how it is placed.

.venv/bin/python benchmarks/placement.py steps --lengths libra-like --batch 128 --dp 16 --pool 8

Attention alone, over a step whose ranks all end together. Pools are taken as even inside, and
plain Ulysses' CP groups work each for itself. Ranks that meet in every micro-batch wait there for
the slowest; the others at the step's end.

Shapes: N packed sequences of a step; B micro-batches of dp CP groups, in K pools each.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.lengths import Int64
from benchmarks.options import positive
from benchmarks.placement_case import PlacementCase, add_case, drawn_steps
from benchmarks.tables import Row, table
from libra.attention.shape import PoolShape
from libra.balancer.placement import Placement, place
from libra.balancer.step_placement import place_step

Way = Callable[[Int64], tuple[float, bool]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_case(parser)
    parser.add_argument("--dp", type=positive, default=16, help="CP groups (%(default)s)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return a row for each way to place a step.

    Raises:
        ValueError: a setting is not what it must be; the message names it.
    """
    case = PlacementCase(
        lengths=args.lengths,
        tokens=args.tokens,
        batch=args.batch,
        pool=args.pool,
        steps=args.steps,
        seed=args.seed,
    )
    shape = PoolShape(dp=args.dp, cp=1, sequences_per_pool=args.pool, largest_pool=args.elastic)
    ways = _ways(shape, case.batch)
    found: dict[str, list[tuple[float, bool]]] = {name: [] for name in ways}
    for step in drawn_steps(case):
        for name, way in ways.items():
            found[name].append(way(step.costs))
    return {"dp": args.dp, "pool": args.pool, "rows": [_row(*own) for own in found.items()]}


def shown(figures: dict[str, Any]) -> str:
    """Return the rows as a table."""
    return table(figures["rows"])


def _ways(shape: PoolShape, batch: int) -> dict[str, Way]:
    """Return by name what gives a step's time over perfect balance, and whether tiles move."""
    fixed = PoolShape(dp=shape.dp, cp=1, sequences_per_pool=shape.sequences_per_pool)
    cells = shape.cell_sizes(batch)
    ways: dict[str, Way] = {
        "plain Ulysses, in order": lambda costs: (_meeting(costs, shape.dp), False),
        "plain Ulysses, sorted into micro-batches": lambda costs: (
            _meeting(np.sort(costs)[::-1], shape.dp),
            False,
        ),
        "pools, longest first": lambda costs: (
            _of_pools(place(costs, cells, max_rounds=0), shape),
            True,
        ),
        "pools, even cells": lambda costs: (_of_pools(place(costs, cells), shape), True),
        "Libra": lambda costs: (place_step(costs, fixed).skew, True),
    }
    if shape != fixed and shape.largest_pool > shape.sequences_per_pool:
        name = f"Libra, pools up to {shape.largest_pool}"
        ways[name] = lambda costs: (place_step(costs, shape).skew, True)
    ways["meeting once a step: plain Ulysses, in order"] = lambda costs: (
        _ratio(costs.reshape(-1, shape.dp).sum(axis=0)),
        False,
    )
    ways["meeting once a step: Libra"] = lambda costs: _meeting_once(costs, fixed)
    return ways


def _meeting(costs: Int64, dp: int) -> float:
    """Return the sum of each micro-batch's costliest sequence, over perfect balance."""
    return float(costs.reshape(-1, dp).max(axis=1).sum() * dp / costs.sum())


def _of_pools(placed: Placement, shape: PoolShape) -> float:
    """Return the sum of each micro-batch's slowest pool, over perfect balance."""
    times = (placed.loads / placed.capacities).reshape(-1, shape.num_pools)
    return float(times.max(axis=1).sum() * shape.dp / placed.loads.sum())


def _meeting_once(costs: Int64, shape: PoolShape) -> tuple[float, bool]:
    placed = place_step(costs, shape, meeting="step")
    return placed.skew, placed.pooling


def _ratio(loads: Int64) -> float:
    return float(loads.max() / loads.mean())


def _row(name: str, found: list[tuple[float, bool]]) -> Row:
    times = [time for time, _ in found]
    return {
        "placed by": name,
        "step / perfect, mean": float(np.mean(times)),
        "p95": float(np.quantile(times, 0.95)),
        "max": float(np.max(times)),
        "tiles move": float(np.mean([moves for _, moves in found])),
    }
