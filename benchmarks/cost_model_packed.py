"""The cost model against measured packs of equal documents, a table of other people's.

For each shape the model is fitted to every other document length and predicts the rest, and the
other way round: each row is predicted once, by a fit that has not seen its length. Figures are
over a shape's predictions of both ways together; the overall ones are means over shapes, each
of which has a model of its own, and "pooled" ones take all shapes' rows as one.
"""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import model_errors
from benchmarks.model_errors import Float64, errors, held_out
from benchmarks.packed_times import PackedTimes, read_packed
from benchmarks.tables import Row, table

MODEL = "libra"
BASELINES = {
    "nonnegative": "4 features, relative weights",
    "nonnegative_by_cost": "4 features, weights 1/seconds",
    "squared_length": "squared length, relative weights",
    "squared_length_unweighted": "squared length, unweighted",
}
# Each of the two fits needs two lengths.
_FEWEST_LENGTHS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--packed", type=Path, required=True, metavar="CSV", help="milliseconds of packs"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return errors overall, of each shape, and of the baselines.

    Raises:
        ValueError: the CSV cannot be used, or no shape has enough lengths.
    """
    return judge(read_packed(args.packed))


def judge(shapes: list[PackedTimes]) -> dict[str, Any]:
    """Return errors overall, of each shape, and of the baselines.

    Raises:
        ValueError: no shape has enough lengths.
    """
    judged = [times for times in shapes if _lengths(times) >= _FEWEST_LENGTHS]
    skipped = [times for times in shapes if _lengths(times) < _FEWEST_LENGTHS]
    if not judged:
        raise ValueError(
            f"packed: no shape has {_FEWEST_LENGTHS} different document_tokens, two to fit and two "
            f"to predict; the most is {max(map(_lengths, shapes), default=0)}"
        )
    predicted = [_predictions(times) for times in judged]
    return {
        **_overall(judged, predicted, MODEL),
        "baselines": {name: _overall(judged, predicted, name) for name in BASELINES},
        "shapes": [_shape(*own) for own in zip(judged, predicted, strict=True)],
        "skipped": [
            {**asdict(times.shape), "lengths": _lengths(times), "needed": _FEWEST_LENGTHS}
            for times in skipped
        ],
    }


def shown(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown, in per cent."""
    rows: list[Row] = [
        {
            "shape": _named(own),
            "rows": own["rows"],
            **_percent("libra", own),
            **_percent("4 features", own["baselines"]["nonnegative"]),
            **_percent("squared length", own["baselines"]["squared_length"]),
        }
        for own in figures["shapes"]
    ]
    overall: list[Row] = [
        {"model": name, **_percent("mean of shapes", own), **_percent("pooled", own["pooled"])}
        for name, own in (
            ("libra", figures),
            *((BASELINES[name], own) for name, own in figures["baselines"].items()),
        )
    ]
    skipped = [
        f"Skipped, {own['lengths']} of {own['needed']} lengths: {_named(own)}."
        for own in figures["skipped"]
    ]
    return "\n\n".join([table(overall), table(rows), *skipped])


def _lengths(times: PackedTimes) -> int:
    return len(np.unique(times.document_tokens))


def _predictions(times: PackedTimes) -> dict[str, Float64]:
    """Return [n] held-out seconds by each model."""
    features, squares = times.features, times.squares
    models = {
        MODEL: (features, model_errors.libra),
        "nonnegative": (features, model_errors.plain),
        "nonnegative_by_cost": (features, model_errors.plain_by_cost),
        "squared_length": (squares, model_errors.proportional_relative),
        "squared_length_unweighted": (squares, model_errors.proportional),
    }
    return {
        name: held_out(columns, times.seconds, times.every_other, predictor)
        for name, (columns, predictor) in models.items()
    }


def _overall(
    judged: list[PackedTimes], predicted: list[dict[str, Float64]], model: str
) -> dict[str, Any]:
    each = [errors(times.seconds, own[model]) for times, own in zip(judged, predicted, strict=True)]
    pooled = errors(
        np.concatenate([times.seconds for times in judged]),
        np.concatenate([own[model] for own in predicted]),
    )
    means = {name: float(np.mean([own[name] for own in each])) for name in pooled}
    return {**means, "pooled": pooled}


def _shape(times: PackedTimes, predicted: dict[str, Float64]) -> dict[str, Any]:
    return {
        **asdict(times.shape),
        "rows": len(times.seconds),
        **errors(times.seconds, predicted[MODEL]),
        "baselines": {name: errors(times.seconds, predicted[name]) for name in BASELINES},
    }


def _named(shape: Mapping[str, Any]) -> str:
    return (
        f"{shape['gpu_type']} {shape['q_heads']}/{shape['kv_heads']} heads of "
        f"{shape['head_dim']}, tp {shape['tp']}, cp {shape['cp']}, {shape['pack_tokens']} tokens"
    )


def _percent(name: str, own: Mapping[str, Any]) -> Row:
    return {
        f"{name}, weighted %": 100 * own["cost_weighted_error"],
        f"{name}, MAPE %": 100 * own["mape"],
    }
