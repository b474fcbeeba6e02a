"""How much of an exchange the kernels hide on a thin wire, by number of waves and by order.

The wire's rate is chosen so that the bytes of a step take a given share of its kernels' seconds.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.layer import Cell, LayerCase, Variant, run_case
from benchmarks.options import add_cells, add_layer, add_plan, drawn_cells, plan_settings, positive
from benchmarks.plans import sent_vectors
from benchmarks.runs import Runs
from benchmarks.slow_link import SlowLinkUnavailableError, slow_link
from benchmarks.tables import Row
from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.plan import PlanSettings, plan_cell
from tests.ranks import run_ranks

_FLOAT32_BYTES = 4
# Enough to tell a pack's kernel seconds by; the rate need not be exact.
_RATE_PACKS = 3

QUICK = {"packs": 2, "tokens": 2048}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cells(parser, packs=10)
    add_layer(parser, heads=[(8, 8)])
    add_plan(parser)
    add = parser.add_argument
    add("--waves", type=positive, nargs="+", default=[1, 2, 4], help="(1 2 4)")
    add("--exchange-share", type=float, default=0.25, help="of kernel seconds (%(default)g)")
    add("--rate-mbit", type=float, help="of the wire, in place of --exchange-share")


def measure(args: argparse.Namespace) -> list[Row]:
    """Return exposed exchange seconds of each variant, or one row that says why there are none."""
    try:
        with slow_link(ranks=1, rate_mbit=1.0):
            pass
    except SlowLinkUnavailableError as error:
        return [{"overlap": f"not measured, this machine permits no slow link: {error}"}]
    if not args.exchange_share > 0:
        raise ValueError(f"exchange_share={args.exchange_share}: must be above 0")
    settings = plan_settings(args)
    # One document beside many: a few large tiles of all heads move, which waves cut by heads.
    long = np.array([args.tokens])
    short = np.full(16, args.tokens // 16)
    one = [long, *[short] * (args.pool - 1)]
    packs = {
        "one document": [one] * args.packs,
        args.lengths: drawn_cells(args, args.pool, count=args.packs),
    }
    return [
        row
        for query, kv in args.heads
        for name, cells in packs.items()
        for row in _rows(name, cells, _case(args, query, kv), settings, args)
    ]


def variants(settings: PlanSettings, waves: Sequence[int]) -> list[Variant]:
    """Return plain Ulysses, each number of waves, and what others sent before one's own work."""
    return [
        Variant(name="plain Ulysses", home=True, settings=settings),
        *(
            Variant(name=f"waves {count}", settings=replace(settings, waves=count))
            for count in waves
        ),
        Variant(name="remote first", remote_first=True, settings=replace(settings, waves=1)),
    ]


def _case(args: argparse.Namespace, query: int, kv: int) -> LayerCase:
    return LayerCase(
        heads=HeadSplit(query_heads=query, kv_heads=kv, cp=args.cp),
        head_dim=args.head_dim,
        tokens=args.tokens,
        pool=args.pool,
        seed=args.seed,
    )


def _rows(
    name: str,
    cells: Sequence[Cell],
    case: LayerCase,
    settings: PlanSettings,
    args: argparse.Namespace,
) -> list[Row]:
    own = variants(settings, args.waves)
    sent = float(np.mean([_busiest_bytes(cell, case, settings) for cell in cells]))
    if not sent:
        raise ValueError(f"tokens={case.tokens}: must be more, nothing moves in {name!r}")
    rate_mbit = args.rate_mbit or _rate_mbit(cells, case, own[0], args, sent)
    with slow_link(ranks=case.ranks, rate_mbit=rate_mbit) as link:
        figures = link.run(run_case, case, cells, own, timeout_s=args.timeout_s)
    runs = Runs(np.stack(figures))
    heads = f"{case.heads.query_heads}/{case.heads.kv_heads}"
    return [
        {
            "cell": name,
            "H/G": heads,
            "plan": variant.name,
            "Mbit/s": float(rate_mbit),
            "step s": float(runs.slowest(index).mean()),
            "kernels s": float(runs.of("kernel_wall_s", index).max(axis=0).mean()),
            "wire s": 0.0 if variant.home else sent * 8e-6 / rate_mbit,
            "exposed s": float(runs.of("wait_s", index).max(axis=0).mean()),
            "step / Ulysses": float(runs.slowest(index).sum() / runs.slowest(0).sum()),
            "skew": float(runs.skew(index).mean()),
        }
        for index, variant in enumerate(own)
    ]


def _busiest_bytes(cell: Cell, case: LayerCase, settings: PlanSettings) -> float:
    plan = plan_cell(list(cell), case.heads, FLOPS_COST, settings)
    return float(sent_vectors(plan).max()) * case.head_dim * _FLOAT32_BYTES


def _rate_mbit(
    cells: Sequence[Cell],
    case: LayerCase,
    home: Variant,
    args: argparse.Namespace,
    sent_bytes: float,
) -> float:
    """Return the rate at which the bytes take ``exchange_share`` of a mean rank's kernels."""
    work = case, cells[:_RATE_PACKS], [home]
    runs = Runs(np.stack(run_ranks(run_case, case.ranks, *work, timeout_s=args.timeout_s)))
    kernel_s = float(runs.of("kernel_wall_s", 0).mean())
    return sent_bytes * 8e-6 / (float(args.exchange_share) * kernel_s)
