"""The figures of placement and packing as Markdown, and where asked into RESULTS.md.

.venv/bin/python benchmarks/placement_table.py --quick
.venv/bin/python benchmarks/placement_table.py --write --peer-path ~/verl ~/OpenRLHF
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import micro_batches, peer_placement
from benchmarks.comparison import compare_documents, compare_sequences
from benchmarks.machine import machine
from benchmarks.placement_case import PlacementCase
from benchmarks.placement_figures import measure_placement
from benchmarks.results_section import write_section
from benchmarks.tables import Row, flat, table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
_RECORDED = {
    "wlb": "lengths-wlb.txt.gz",
    "magi": "lengths-magi-histogram.csv",
    "wikipedia": "lengths-wikipedia.txt.gz",
}
_PACKING = ROOT / "benchmarks" / "packing.py"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A case, and what its figures are to be at most."""

    case: PlacementCase
    goal: str


def _case(lengths: str, tokens: int, batch: int, pool: int, elastic: int = 0) -> PlacementCase:
    return PlacementCase(
        lengths=lengths,
        tokens=tokens,
        batch=batch,
        pool=pool,
        elastic=elastic,
        exchange=elastic > 0,
    )


_GOALS = (
    Goal(case=_case("libra-like", 1 << 18, 128, 8), goal="mean 0.004"),
    Goal(case=_case("libra-like", 1 << 18, 128, 16), goal="mean 0.0003"),
    Goal(
        case=_case("libra-like", 1 << 20, 32, 8),
        goal="median 0.001, above bound 0.003, within 0.1 % in 0.9",
    ),
    Goal(case=_case("wlb", 1 << 18, 128, 8), goal="mean 0.003"),
    Goal(case=_case("magi", 1 << 18, 128, 8), goal="mean 0.001"),
)
_ELASTIC = Goal(
    case=_case("wikipedia", 1 << 18, 128, 8, elastic=32), goal="mean 0.10, bytes 1.5 of P = 8"
)
# N and M of the placements that are timed, and the milliseconds that one may take.
_TIMED = ((1024, 128, 5), (8192, 1024, 25))
_PACKED_DOCUMENTS = 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--write", nargs="?", type=Path, const=RESULTS, metavar="FILE", help="(RESULTS.md)")
    add("--quick", action="store_true", help="sizes that prove nothing, never into RESULTS.md")
    add("--peer-path", type=Path, nargs="+", default=[], metavar="DIR", help="other projects'")
    args = parser.parse_args()
    sections = [
        _machine(),
        "### Evenness between pools\n\n" + _evenness(args.quick),
        "### Elastic pools\n\n" + _elastic(args.quick),
        "### Other ways to place the same sequences\n\n" + _compared(args.quick),
        "### Steps of several micro-batches\n\n" + _micro_batches(args.quick),
        *(_beside_peers(args, *sizes) for sizes in _TIMED),
        "### Packing\n\n" + _packing(args.quick),
    ]
    text = "\n\n".join(sections) + "\n"
    sys.stdout.write(text)
    if args.write and not (args.quick and args.write == RESULTS):
        write_section(args.write, "placement", text)


def _machine() -> str:
    """Return what ran this, for a reader of seconds."""
    return (
        f"One thread of {machine('numpy')}. Imbalance is the heaviest cell's cost per slot over "
        "the mean, less 1."
    )


def _sized(case: PlacementCase, quick: bool) -> PlacementCase:
    """Return the case itself, or one that takes a moment."""
    return replace(case, tokens=1 << 14, batch=32, steps=3) if quick else case


def _source(name: str) -> tuple[str, str]:
    """Return lengths and their name for people: recorded ones where LIBRA_DATA has them."""
    file = Path(os.environ.get("LIBRA_DATA", "")) / _RECORDED.get(name, "")
    if name not in _RECORDED or not os.environ.get("LIBRA_DATA") or not file.is_file():
        return name, f"{name} (generator)"
    return str(file), f"{name} ({file.name})"


def _evenness(quick: bool) -> str:
    rows: list[Row] = []
    for own in _GOALS:
        case = _sized(own.case, quick)
        lengths, shown = _source(case.lengths)
        figures: dict[str, Any] = measure_placement(replace(case, lengths=lengths))
        rows.append(
            {
                "lengths": shown,
                "tokens": case.tokens,
                "N": case.batch,
                "P": case.pool,
                "steps": case.steps,
                **figures["imbalance"],
                "bound, mean": figures["bound"]["mean"],
                "above bound, mean": figures["above_bound"]["mean"],
                "within 0.1 %": figures["within_0.1_percent"],
                "tight bound, mean": figures["tight_bound"]["mean"],
                "within 0.1 % of it": figures["within_0.1_percent_of_tight_bound"],
                "in order, mean": figures["in_order"]["mean"],
                "ms": 1e3 * figures["seconds"]["median"],
                "goal": own.goal,
            }
        )
    return table(rows)


def _elastic(quick: bool) -> str:
    case = _sized(_ELASTIC.case, quick)
    lengths, shown = _source(case.lengths)
    figures: dict[str, Any] = measure_placement(replace(case, lengths=lengths))
    rows: list[Row] = [
        {
            "lengths": shown,
            "pools": pools,
            "steps": case.steps,
            **own["imbalance"],
            "bound, mean": own["bound"]["mean"],
            "bytes, mean rank": sent["mean"],
            "busiest rank": sent["busiest"],
            "slowest rank after pooling": sent["rank_imbalance"],
            "goal": goal,
        }
        for pools, own, sent, goal in (
            (f"{case.pool}", figures["fixed"], figures["fixed_bytes"], ""),
            (f"{case.pool} to {case.elastic}", figures, figures["bytes"], _ELASTIC.goal),
        )
    ]
    used = ", ".join(f"{count} of {size}" for size, count in figures["pool_sizes"].items())
    ratio = figures["bytes_ratio"]
    return (
        f"{table(rows)}\n\nBytes are over those that Ulysses itself sends, 32 query and 8 kv "
        f"heads, CP groups of 8. Elastic over fixed: {_times(ratio['mean'])} for the mean rank, "
        f"{_times(ratio['busiest'])} for the busiest. Pools: {used}."
    )


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f}"


def _compared(quick: bool) -> str:
    case = _sized(_GOALS[0].case, quick)
    steps = min(case.steps, 20)
    documents = compare_documents(case, steps=steps)
    return (
        f"{case.lengths}, {case.tokens} tokens, N = {case.batch}, P = {case.pool}, {case.steps} "
        f"steps; all but Libra's written from their descriptions:\n\n"
        f"{table(compare_sequences(case))}\n\n"
        f"Those that move documents or change CP sizes, {steps} steps, attention's work of the "
        f"slowest rank over the mean, less 1:\n\n{table(documents)}"
    )


def _micro_batches(quick: bool) -> str:
    lengths, shown = _source("wikipedia")
    parts = []
    cases = (lengths, shown, "32"), ("libra-like", "libra-like (generator)", "16")
    for name, what, dp in cases:
        parser = argparse.ArgumentParser()
        micro_batches.add_arguments(parser)
        small = ["--tokens", "16384", "--steps", "3"] if quick else []
        args = parser.parse_args(["--lengths", name, "--dp", dp, "--elastic", dp, *small])
        rows = micro_batches.shown(micro_batches.measure(args))
        parts.append(
            f"{what}, {args.tokens} tokens, N = {args.batch} on {args.dp} CP groups, P = "
            f"{args.pool}, {args.steps} steps; attention's time of a step over perfect balance, "
            f"pools taken as even inside:\n\n{rows}"
        )
    return "\n\n".join(parts)


def _beside_peers(args: argparse.Namespace, sequences: int, cells: int, goal_ms: int) -> str:
    parser = argparse.ArgumentParser()
    peer_placement.add_arguments(parser)
    small = ["--tokens", "4096"] if args.quick else []
    if args.quick:
        sequences, cells = sequences // 32, cells // 32
    own = parser.parse_args(["--n", str(sequences), "--cells", str(cells), *small])
    own.peer_path = args.peer_path
    rows = peer_placement.shown(peer_placement.measure(own))
    return (
        f"### One placement of {sequences} sequences into {cells} cells\n\n"
        f"libra-like, {own.tokens} tokens; goal {goal_ms} ms; best of five after a warm-up:"
        f"\n\n{rows}"
    )


def _packing(quick: bool) -> str:
    documents = 10_000 if quick else _PACKED_DOCUMENTS
    done = subprocess.run(
        [sys.executable, str(_PACKING), "--documents", str(documents), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    if done.returncode:
        return f"Not measured: benchmarks/packing.py: {done.stderr.strip().splitlines()[-1:]}"
    figures = json.loads(done.stdout)
    rows: list[Row] = [{"figure": name, "value": value} for name, value in flat(figures).items()]
    return f"{documents} documents; goal 10 s and 500 MB:\n\n{table(rows)}"


if __name__ == "__main__":
    main()
