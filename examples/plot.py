"""The demo's picture: skew of every step, before and after."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from libra.examples.pairs import Pair

_COLOURS = {"plain Ulysses": "#c44e52", "Libra": "#2a7f9e"}


def plot_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """Draw the pairs' skews over steps, and mark where each policy took effect.

    Raises:
        ValueError: matplotlib knows no format of the path's ending.
        OSError: the file cannot be written.
    """
    mpl.use("Agg")
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    steps = [pair.step for pair in pairs]
    skews = ([pair.baseline.skew for pair in pairs], [pair.libra.skew for pair in pairs])
    for (label, colour), values in zip(_COLOURS.items(), skews, strict=True):
        axes.plot(steps, values, label=label, color=colour, marker=".", linewidth=1)
    previous = 0
    for pair in pairs:
        if pair.policy_version != previous:
            previous = pair.policy_version
            axes.axvline(pair.step, color="0.6", linewidth=1, linestyle="--")
            axes.annotate(
                f" policy {previous}",
                (pair.step, 1),
                xycoords=("data", "axes fraction"),
                va="top",
                color="0.4",
            )
    axes.axhline(1, color="0.85", linewidth=1)
    axes.set(xlabel="step", ylabel="attention skew (slowest rank / mean)", ylim=(0.95, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
