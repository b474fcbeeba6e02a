"""The cost model in a job: ranks' kernel seconds of a step, predicted before they are known.

Real ranks run a layer, forward and backward, over uneven packs under Libra's plans, so that some
tiles are cut and some come from another rank, and all inputs are as cold as they are in training.
The model learns from the moments of the first half of the steps, of all ranks together, and
predicts each rank's kernel seconds in every step of the second half.

Shapes: R ranks; N steps of the second half; K kernel kinds; F features.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.layer import Cell, Layer, LayerCase, Variant
from benchmarks.machine import machine
from benchmarks.model_errors import Float64, errors
from benchmarks.options import add_cells, drawn_cells, positive
from benchmarks.tables import Row, table
from libra.agent.meter import Clock, StepMeter
from libra.attention.cost import FEATURES
from libra.attention.heads import HeadSplit
from libra.attention.observer import KernelKind
from libra.attention.plan import PlanSettings
from libra.balancer.model import QuadraticCostModel
from libra.balancer.moments import Moments
from libra.balancer.wire import KernelTotals
from tests.ranks import run_ranks

_PAIRS = FEATURES.index("causal_pairs")
_FEWEST_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """What one rank reported.

    Attributes:
        moments: of the first half of its steps, sums by kind.
        steps: of the second half, totals by kind.
    """

    moments: list[tuple[KernelKind, list[float]]]
    steps: list[list[KernelTotals]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cells(parser, packs=40, tokens=8192)
    add = parser.add_argument
    add("--ranks", type=positive, default=2, help="a pool of as many sequences (%(default)s)")
    add("--heads", type=positive, default=8, help="query and kv heads (%(default)s)")
    add("--head-dim", type=positive, default=64, help="(%(default)s)")
    add("--clock", choices=("cpu", "wall"), default="cpu", help="(%(default)s)")
    add("--timeout-s", type=float, default=1800.0, help="deadline of the ranks (%(default)g)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return how far predicted rank totals are from measured ones.

    Raises:
        ValueError: there are too few steps or kernel calls for a fit.
    """
    if args.packs < _FEWEST_STEPS:
        raise ValueError(f"packs={args.packs}: must be at least {_FEWEST_STEPS}")
    case = LayerCase(
        heads=HeadSplit(query_heads=args.heads, kv_heads=args.heads),
        head_dim=args.head_dim,
        tokens=args.tokens,
        pool=args.ranks,
        seed=args.seed,
    )
    cells = drawn_cells(args, args.ranks, count=args.packs)
    runs = run_ranks(_rank, case.ranks, case, cells, args.clock, timeout_s=args.timeout_s)
    return {
        "machine": machine("numpy", "torch"),
        "clock": args.clock,
        "tokens": args.tokens,
        "head_dim": args.head_dim,
        **judge(runs),
    }


def shown(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown, errors in per cent."""
    rows: list[Row] = [
        {
            "model": name,
            "rank-steps": figures["rank_steps"],
            "weighted %": 100 * own["cost_weighted_error"],
            "MAPE %": 100 * own["mape"],
            "p90 %": 100 * own["p90"],
            "bias %": 100 * own["bias"],
        }
        for name, own in (("libra", figures["libra"]), ("flops", figures["flops"]))
    ]
    return f"{figures['machine']}; {figures['clock']} seconds of one thread.\n\n{table(rows)}"


def judge(runs: list[RankRun]) -> dict[str, Any]:
    """Return errors over all rank-steps of the model and of causal pairs alone.

    Raises:
        ValueError: a kind of kernel was called too rarely for a fit.
    """
    models: dict[KernelKind, QuadraticCostModel] = {}
    for kind, sums in (own for run in runs for own in run.moments):
        models.setdefault(kind, QuadraticCostModel()).merge(Moments(sums))
    if not models or any(model.source_ != "measured" for model in models.values()):
        raise ValueError("packs: must be more, for enough kernel calls to fit")
    coefficients = {kind: model.coef_ for kind, model in models.items()}
    per_pair = {kind: _per_pair(model.moments_) for kind, model in models.items()}
    steps = [step for run in runs for step in run.steps]
    seconds = np.array([sum(kernel.seconds for kernel in step) for step in steps])
    return {
        "rank_steps": len(steps),
        "libra": _errors(seconds, _totals(steps, coefficients)),
        "flops": _errors(seconds, _totals(steps, per_pair)),
    }


def _rank(rank: int, case: LayerCase, cells: list[Cell], clock: Clock) -> RankRun:
    layer = Layer(case)
    layer.meter = StepMeter(clock)
    variant = Variant(name="Libra", settings=PlanSettings())
    steps: list[list[KernelTotals]] = []
    layer.meter.sink = lambda totals: steps.append(totals.kernels)
    moments = []
    half = len(cells) // 2
    for index, cell in enumerate((cells[0], *cells)):
        layer.run(layer.layout(cell, variant, index), home=False)
        if index == 0:
            layer.meter.take_moments()  # warming up
        if index == half:
            moments = [(own.kind, own.sums) for own in layer.meter.take_moments()]
    return RankRun(moments=moments, steps=steps[half + 1 :])


def _per_pair(moments: Moments) -> Float64:
    """Return [F] seconds per feature where only causal pairs cost anything."""
    coefficients = np.zeros(len(FEATURES))
    # The weights cancel y: the projection holds plain sums of features.
    coefficients[_PAIRS] = moments.seconds / moments.projection[_PAIRS]
    return coefficients


def _totals(steps: list[list[KernelTotals]], coefficients: dict[KernelKind, Float64]) -> Float64:
    """Return [R * N] predicted seconds."""
    return np.array(
        [sum(float(np.dot(coefficients[own.kind], own.features)) for own in step) for step in steps]
    )


def _errors(seconds: Float64, predicted: Float64) -> dict[str, float]:
    missed = np.abs(predicted / seconds - 1)
    return {
        **errors(seconds, predicted),
        "p90": float(np.quantile(missed, 0.9)),
        "bias": float(predicted.sum() / seconds.sum() - 1),
    }
