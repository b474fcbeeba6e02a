"""What the control loop does in simulated jobs whose answer is known, over many seeds.

The course of a job is a pure function of its seed (``tests/loop.py``), so two runs print the same.
All of them take two cores the better part of an hour.

.venv/bin/python benchmarks/control_loop.py --quick
.venv/bin/python benchmarks/control_loop.py --json > loop.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results_section import write_section
from benchmarks.tables import Row, table
from tests.loop_lies import LIES
from tests.loop_scenarios import (
    EVEN,
    SLOWDOWN,
    equal_ranks,
    harm,
    lie,
    slow_rank,
)
from tests.loop_seeds import run_seeds

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_TIMEOUT_S = 6 * 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few seeds and short runs, never into RESULTS.md")
    add("--json", action="store_true", help="print a list of objects, not a table")
    add("--write", action="store_true", help="into RESULTS.md as well")
    args = parser.parse_args()
    rows = measure(quick=args.quick)
    print(json.dumps(rows, indent=2) if args.json else table(rows))
    if args.write and not args.quick:
        write_section(RESULTS, "loop", table(rows) + "\n")


def measure(*, quick: bool) -> list[Row]:
    """Return a row of figures for each course."""
    steps = 200 if quick else 2000
    rows = [
        _slow_rank(4 if quick else 200),
        _equal_ranks(4 if quick else 200, steps),
        _harm(4 if quick else 50),
    ]
    return rows + [_lie(kind, 1 if quick else 10) for kind in LIES]


def _slow_rank(seeds: int) -> Row:
    found = run_seeds(slow_rank, range(seeds), timeout_s=_TIMEOUT_S)
    return {
        "course": f"a rank slowed {SLOWDOWN:g} times",
        "seeds": seeds,
        "named after, worst": _worst([own.named_after for own in found]),
        f"skew under {EVEN:g} after, worst": _worst([own.even_after for own in found]),
        "others flagged": sum(bool(own.others) for own in found),
        "versions, most": max(own.versions for own in found),
    }


def _equal_ranks(seeds: int, steps: int) -> Row:
    run = partial(equal_ranks, steps=steps)
    found = run_seeds(run, range(seeds), timeout_s=_TIMEOUT_S)
    return {
        "course": f"equal ranks, {steps} steps",
        "seeds": seeds,
        "others flagged": sum(bool(own.flagged) for own in found),
        "versions, most": max(own.versions for own in found),
    }


def _harm(seeds: int) -> Row:
    found = run_seeds(harm, range(seeds), timeout_s=_TIMEOUT_S)
    return {
        "course": "a harmful policy forced in",
        "seeds": seeds,
        "steps under it, worst": _worst([own.steps_under for own in found]),
    }


def _lie(kind: str, seeds: int) -> Row:
    found = run_seeds(partial(lie, kind=kind), range(seeds), timeout_s=_TIMEOUT_S)
    return {
        "course": f"a rank lies: {kind}",
        "seeds": seeds,
        "others flagged": sum(bool(own.flagged_honest) for own in found),
        "plan over the honest one, worst": max(own.over_honest for own in found),
    }


def _worst(steps: Sequence[int | None]) -> int | None:
    """Return the most steps; None, a dash in the table, where it never came."""
    known = [own for own in steps if own is not None]
    return max(known) if len(known) == len(steps) else None


if __name__ == "__main__":
    main()
