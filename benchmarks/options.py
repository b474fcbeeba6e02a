"""Options that several benchmarks share, and what they turn into.

Shapes: P sequences of a pool; C ranks of a CP group; H query heads and G kv heads of the model.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.lengths import Int64, family, packed_cell
from libra.attention.plan import PlanSettings


def positive(text: str) -> int:
    """Return an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def model_heads(text: str) -> tuple[int, int]:
    """Return H and G of ``H/G``."""
    try:
        query, kv = (positive(part) for part in text.split("/"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: must be H/G, as 8/2") from error
    return query, kv


def add_cells(parser: argparse.ArgumentParser, *, packs: int, tokens: int = 16384) -> None:
    """Declare what the cells hold, and how many there are."""
    add = parser.add_argument
    add("--lengths", default="long-tailed", metavar="FILE|NAME", help="(%(default)s)")
    add("--tokens", type=positive, default=tokens, help="of a packed sequence (%(default)s)")
    add("--packs", type=positive, default=packs, help="cells to measure (%(default)s)")
    add("--seed", type=int, default=0)


def add_layer(
    parser: argparse.ArgumentParser, *, heads: Sequence[tuple[int, int]], cp: int = 1, pool: int = 2
) -> None:
    """Declare the layer and its ranks."""
    add = parser.add_argument
    shown = " ".join(f"{query}/{kv}" for query, kv in heads)
    add("--heads", type=model_heads, nargs="+", default=heads, metavar="H/G", help=f"({shown})")
    add("--head-dim", type=positive, default=64, help="D (%(default)s)")
    add("--cp", type=positive, default=cp, help="ranks of a CP group, C (%(default)s)")
    add("--pool", type=positive, default=pool, help="sequences of a pool, P (%(default)s)")
    add("--timeout-s", type=float, default=7200.0, help="deadline of the ranks (%(default)g)")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Declare how cells are planned."""
    default = PlanSettings()
    add = parser.add_argument
    add("--block-rows", type=int, default=default.block_rows, help="(%(default)s)")
    add("--memory-permille", type=int, default=default.memory_permille, help="(%(default)s)")


def plan_settings(args: argparse.Namespace) -> PlanSettings:
    """Return the settings of ``add_plan``'s options.

    Raises:
        ValueError: one is out of range.
    """
    return PlanSettings(block_rows=args.block_rows, memory_permille=args.memory_permille)


def drawn_cells(args: argparse.Namespace, pool: int, *, count: int) -> list[list[Int64]]:
    """Return ``count`` seeded cells of ``pool`` packed sequences.

    Raises:
        ValueError: the lengths are neither a family nor a file of lengths.
    """
    draw, rng = family(args.lengths), np.random.default_rng(args.seed)
    return [packed_cell(draw, rng, args.tokens, pool) for _ in range(count)]
