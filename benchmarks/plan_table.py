"""Evenness, bytes and seconds of plans over families of lengths, pools, CP groups and contexts."""

import argparse
import itertools
from typing import Any

from benchmarks.lengths import FAMILIES
from benchmarks.options import add_plan, plan_settings, positive
from benchmarks.plans import PlanCase, measure_plans
from benchmarks.tables import Row
from libra.attention.heads import HeadSplit

# Those with published parameters.
_PUBLISHED = ("libra", "wikipedia", "wlb", "prolong", "bimodal")

QUICK = {"packs": 2, "tokens": [16384], "pool": [2, 4], "cp": [1, 2]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--lengths", nargs="*", default=[], metavar="FILE|NAME", help="beside the published")
    add("--only", action="store_true", help="those of --lengths alone")
    add("--tokens", type=positive, nargs="+", default=[1 << 18, 1 << 20])
    add("--pool", type=positive, nargs="+", default=[2, 4, 8, 16], help="P")
    add("--cp", type=positive, nargs="+", default=[1, 2, 4, 8, 16], help="C")
    add("--query-heads", type=positive, default=32)
    add("--kv-heads", type=positive, default=8)
    add("--packs", type=positive, default=50, help="of a row (%(default)s)")
    add("--seed", type=int, default=0)
    add_plan(parser)


def measure(args: argparse.Namespace) -> list[Row]:
    """Return a row for each combination."""
    families = [*(() if args.only else _PUBLISHED), *args.lengths]
    if not families:
        raise ValueError(f"lengths={families}: must be a file or one of {', '.join(FAMILIES)}")
    settings = plan_settings(args)
    cases = [
        PlanCase(
            lengths=lengths,
            tokens=tokens,
            pool=pool,
            heads=HeadSplit(query_heads=args.query_heads, kv_heads=args.kv_heads, cp=cp),
            packs=args.packs,
            settings=settings,
            seed=args.seed,
        )
        for lengths, tokens, pool, cp in itertools.product(
            families, args.tokens, args.pool, args.cp
        )
    ]
    return [_row(case) for case in cases]


def _row(case: PlanCase) -> Row:
    figures: Any = measure_plans(case)
    return {
        "lengths": case.lengths,
        "tokens": case.tokens,
        "P": case.pool,
        "C": case.heads.cp,
        "home max/mean": figures["home_max_over_mean"]["median"],
        "max/mean": figures["max_over_mean"]["median"],
        "p99": figures["max_over_mean"]["p99"],
        "within 1.02": figures["share_within_1.02"],
        "over bound": figures["over_block_bound"]["max"],
        "bytes, mean": figures["bytes_ratio"]["mean"],
        "busiest": figures["bytes_ratio"]["busiest"],
        "seconds": figures["seconds"]["median"],
    }
