"""Show a demo's summary on the terminal, plainly: no praise for what noise may have done."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from libra.examples.summary import TOLERANCE


def print_report(console: Console, summary: dict[str, Any], model: dict[str, Any] | None) -> None:
    """Print the two runs side by side, what was gained and how sure that is.

    Args:
        console: to print on.
        summary: from ``summarise``.
        model: the balancer's model view, None when it did not answer.
    """
    if summary["pairs"]:
        console.print(_sides(summary))
    console.print(_details(summary, model))
    verdict = summary["verdict"]
    if verdict == "ok":
        console.print(_conclude(summary))
    else:
        console.print(f"[yellow]{verdict[0].upper()}{verdict[1:]}. These figures prove nothing.")


def _sides(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['pairs']} pairs of steps, {summary['clock']} time")
    table.add_column()
    table.add_column("plain Ulysses", justify="right")
    table.add_column("Libra", justify="right")
    for statistic in ("mean", "p95", "worst"):
        values = [summary[side]["skew"][statistic] for side in ("baseline", "libra")]
        table.add_row(f"attention skew, {statistic}", *(f"{value:.3f}" for value in values))
    medians = [summary[side]["step_seconds"]["median"] for side in ("baseline", "libra")]
    table.add_row("step, median", *(f"{value:.3f} s" for value in medians))
    return table


def _details(summary: dict[str, Any], model: dict[str, Any] | None) -> Table:
    table = Table(show_header=False, box=None)
    for label, value in (
        ("speed-up", _number(summary["speedup"], ".3f")),
        ("perfect balance would give", _number(summary["perfect_speedup"], ".3f")),
        ("share of that gain reached", _number(summary["gain_share"], ".0%")),
        ("waiting for the exchange", _number(summary["exchange_share"], ".1%")),
        ("largest loss difference", _number(summary["max_loss_difference"], ".1e")),
        ("largest gradient difference", _number(summary["max_gradient_difference"], ".1e")),
        ("  float32's tolerance", f"{TOLERANCE:.0e}"),
        ("unsteady pairs, not counted", str(summary["noise"]["unsteady_pairs"])),
        ("  speed-up with them", _number(summary["noise"]["speedup_of_all_pairs"], ".3f")),
        ("warm-up pairs, not counted", str(summary["warmup_pairs"])),
        ("  their speed-up, 1 without noise", _number(summary["noise"]["warmup_speedup"], ".3f")),
    ):
        table.add_row(label, value)
    for policy in summary["policies"]:
        table.add_row(
            f"policy {policy['version']} from step {policy['first_step']}",
            escape(policy["reason"] or "reason unknown"),
        )
    for kind in model["kinds"] if model else ():
        terms = zip(model["features"] if model else (), kind["coefficients"], strict=True)
        cost = ", ".join(f"{seconds:.1e} s x {name}" for name, seconds in terms)
        error = _number(kind["error"], ".1%")
        table.add_row(f"cost model, {kind['kind']['direction']}", f"{cost}; error {error}")
    return table


def _conclude(summary: dict[str, Any]) -> str:
    before, after = (summary[side]["skew"]["mean"] for side in ("baseline", "libra"))
    speedup = summary["speedup"]
    effect = f"{speedup:.2f} times as fast as" if speedup > 1 else f"no faster ({speedup:.2f}) than"
    return f"Mean skew went from {before:.2f} to {after:.2f}; steps were {effect} plain Ulysses."


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)
