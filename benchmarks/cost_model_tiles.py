"""The cost model against tiles on this machine: whole documents and tails of them.

Each tile is predicted by a model of all other tiles but a fifth, whole and cut ones together,
forward and backward apart, as the product has it; truth is a tile's median over the passes.
"observations" tells after how many single calls the cost-weighted error stays within 5 %, from
nothing, over many random orders. FLOPs is causal pairs alone, fitted to the same calls.
"""

import argparse
from typing import Any

import numpy as np

from benchmarks import model_errors
from benchmarks.learning_curve import observations_needed, quantile
from benchmarks.machine import machine
from benchmarks.model_errors import Float64, Int64, Predictor, errors, held_out
from benchmarks.options import positive
from benchmarks.tables import Row, flat, table
from benchmarks.tile_times import DIRECTIONS, TileSet, draw_tiles, measure_tiles

MODELS: dict[str, Predictor] = {"libra": model_errors.libra, "flops": model_errors.flops}
_FOLDS = 5
_WITHIN = 0.05
# Beyond these nobody waits for a fit.
_MOST_OBSERVATIONS = 200
_FEWEST_TILES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tiles", type=positive, default=70, help="whole, and as many cut (%(default)s)")
    add("--longest", type=positive, default=12288, help="tokens of a document (%(default)s)")
    add("--head-dims", type=positive, nargs="+", default=[64, 128], metavar="D", help="(64 128)")
    add("--passes", type=positive, default=5, help="over all tiles, after one more (%(default)s)")
    add("--orders", type=positive, default=40, help="of learning (%(default)s)")
    add("--clock", choices=("cpu", "wall"), default="cpu", help="(%(default)s)")
    add("--seed", type=int, default=0)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return errors and observations needed for each head dim.

    Raises:
        ValueError: there are too few tiles to hold some out, or they are too short.
    """
    if args.tiles < _FEWEST_TILES:
        raise ValueError(f"tiles={args.tiles}: must be at least {_FEWEST_TILES}")
    tiles = draw_tiles(whole=args.tiles, cut=args.tiles, longest=args.longest, seed=args.seed)
    return {
        "machine": machine("numpy", "torch"),
        "clock": args.clock,
        "passes": args.passes,
        "head_dims": [_head_dim(tiles, head_dim, args) for head_dim in args.head_dims],
    }


def shown(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown, errors in per cent."""
    rows: list[Row] = []
    for own in figures["head_dims"]:
        for model in MODELS:
            for direction, parts in own[model].items():
                which: Row = {"D": own["head_dim"], "model": model, "kernel": direction}
                rows.append({**which, **{k: 100 * float(v) for k, v in flat(parts).items() if v}})
    needed: list[Row] = [
        {"D": own["head_dim"], "scatter of a tile %": 100 * own["scatter"], **own["observations"]}
        for own in figures["head_dims"]
    ]
    head = f"{figures['machine']}; {figures['clock']} seconds of one thread."
    return f"{head}\n\n{table(rows)}\n\n{table(needed)}"


def judge(tiles: TileSet, seconds: Float64, *, seed: int) -> dict[str, Any]:
    """Return each model's errors of whole and of cut tiles, [N, n, 2] seconds given."""
    folds = np.random.default_rng(seed).permutation(len(tiles)) % _FOLDS
    truth = np.median(seconds, axis=0)
    found: dict[str, Any] = {}
    for name, predictor in MODELS.items():
        predicted = np.stack(
            [_predict(tiles, seconds[..., own], folds, predictor) for own in range(2)], axis=1
        )
        both = truth.sum(axis=1), predicted.sum(axis=1)
        each = zip(truth.T, predicted.T, strict=True)
        found[name] = {
            direction: {
                "whole": errors(y[~tiles.cut], p[~tiles.cut]),
                "cut": errors(y[tiles.cut], p[tiles.cut]),
            }
            for direction, (y, p) in zip(("both", *DIRECTIONS), (both, *each), strict=True)
        }
    return found


def learning(features: Float64, seconds: Float64, *, orders: int, seed: int) -> dict[str, Any]:
    """Return how many observations random orders need: median, nine of ten, and how many fail."""
    needed = [
        observations_needed(
            features, seconds, most=_MOST_OBSERVATIONS, within=_WITHIN, seed=seed + order
        )
        for order in range(orders)
    ]
    return {
        "orders": orders,
        "median": quantile(needed, 0.5),
        "p90": quantile(needed, 0.9),
        "never": needed.count(None),
    }


def _head_dim(tiles: TileSet, head_dim: int, args: argparse.Namespace) -> dict[str, Any]:
    seconds = measure_tiles(
        tiles, head_dim=head_dim, passes=args.passes, clock=args.clock, seed=args.seed
    )
    spread = np.abs(seconds / np.median(seconds, axis=0) - 1)
    return {
        "head_dim": head_dim,
        "scatter": float(np.median(spread)),
        **judge(tiles, seconds, seed=args.seed),
        "observations": learning(tiles.features, seconds, orders=args.orders, seed=args.seed),
    }


def _predict(tiles: TileSet, seconds: Float64, folds: Int64, predictor: Predictor) -> Float64:
    """Return [n] held-out predictions, fitted to every pass's calls [N, n] of the other tiles."""
    passes, number = seconds.shape
    features, all_folds = np.tile(tiles.features, (passes, 1)), np.tile(folds, passes)
    return held_out(features, seconds.ravel(), all_folds, predictor)[:number]
