"""How even the placement of steps is between pools, what bounds it, and how long it takes.

.venv/bin/python benchmarks/placement.py --lengths libra-like --tokens 262144 --batch 128 --pool 8
.venv/bin/python benchmarks/placement.py steps --lengths wikipedia --batch 128 --dp 32 --pool 8
.venv/bin/python benchmarks/placement.py peers --n 8192 --cells 1024 --peer-path ~/verl
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import micro_batches, peer_placement
from benchmarks.comparison import compare_documents, compare_sequences
from benchmarks.options import positive
from benchmarks.placement_case import PlacementCase, add_case
from benchmarks.placement_figures import measure_placement
from benchmarks.tables import Row, flat, table


def main() -> None:
    other = {"peers": peer_placement, "steps": micro_batches}.get("".join(sys.argv[1:2]))
    parser = argparse.ArgumentParser(
        description=other.__doc__ if other else __doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    (other.add_arguments if other else _add_arguments)(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args(sys.argv[2 if other else 1 :])
    try:
        figures = other.measure(args) if other else _measure(args)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    text = json.dumps(figures) if args.json else other.shown(figures) if other else _shown(figures)
    sys.stdout.write(f"{text}\n")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_case(parser)
    add = parser.add_argument
    add(
        "--cost", default="flops", help="flops, sum-l2 or A,B,C,D,E,F: seconds of a tile's features"
    )
    add("--bytes", action="store_true", help="what ranks send; elastic pools always show it")
    add("--compare", action="store_true", help="other ways to place, on the same sequences")
    add("--document-steps", type=positive, default=20, help="of those that move documents")


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    case = PlacementCase(
        lengths=args.lengths,
        tokens=args.tokens,
        batch=args.batch,
        pool=args.pool,
        elastic=args.elastic,
        steps=args.steps,
        seed=args.seed,
        cost=args.cost,
        exchange=args.bytes or args.elastic > 0,
    )
    figures: dict[str, Any] = measure_placement(case)
    if args.compare:
        figures["comparators"] = compare_sequences(case)
        figures["document_comparators"] = compare_documents(case, steps=args.document_steps)
    return figures


def _shown(figures: dict[str, Any]) -> str:
    """Return the figures as tables for people."""
    every = {**figures, **{f"fixed {name}": own for name, own in figures.get("fixed", {}).items()}}
    of_steps: list[Row] = [
        {"of steps": name, **own} for name, own in every.items() if _is_spread(own)
    ]
    single: list[Row] = [
        {"figure": name, "value": value}
        for name, own in every.items()
        if not _is_spread(own) and not isinstance(own, list) and name != "fixed"
        for name, value in flat({name: own}).items()
    ]
    parts = [of_steps, single, figures.get("comparators"), figures.get("document_comparators")]
    return "\n\n".join(table(part) for part in parts if part)


def _is_spread(figure: object) -> bool:
    return isinstance(figure, dict) and "p95" in figure


if __name__ == "__main__":
    main()
