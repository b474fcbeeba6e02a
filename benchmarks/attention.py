"""Figures of the tiled attention operator, each by a command of its own.

.venv/bin/python benchmarks/attention.py plan --lengths libra --tokens 262144 --pool 8 --cp 8
.venv/bin/python benchmarks/attention.py step --quick
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.plans import PlanCase, measure_plans
from benchmarks.tables import table
from libra.attention.heads import HeadSplit
from libra.attention.plan import PlanSettings

# By command: a module, loaded when it is asked for, since the planner's need no torch. It declares
# its options in add_arguments, returns rows from measure, and has defaults for --quick in QUICK.
BENCHMARKS = {
    "plans": ("plan_table", "evenness, bytes and seconds of plans, a table"),
    "planner-time": ("planner_time", "milliseconds to plan a cell"),
    "step": ("step", "steps of a layer, plain Ulysses beside Libra"),
    "even": ("even", "the same where there is nothing to even out"),
    "kernels": ("kernel_cuts", "kernel seconds of cut tiles over uncut ones"),
    "memory": ("memory", "peak tensor bytes"),
    "overlap": ("overlap", "exposed exchange on a thin wire"),
    "peers": ("peers", "the home plan against DeepSpeed's"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    _add_plan(commands.add_parser("plan", help="evenness, bytes and seconds of plans"))
    for name, (module, summary) in BENCHMARKS.items():
        command = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in sys.argv:
            _add(command, import_module(f"benchmarks.{module}"))
    args = parser.parse_args()
    try:
        args.run(args)
    except ValueError as error:
        parser.error(str(error))


def _add(parser: argparse.ArgumentParser, benchmark: Any) -> None:
    parser.description = benchmark.__doc__
    benchmark.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="sizes that prove nothing, in seconds")
    parser.add_argument("--json", action="store_true", help="one JSON list of rows")
    if "--quick" in sys.argv:
        parser.set_defaults(**benchmark.QUICK)

    def run(args: argparse.Namespace) -> None:
        rows = benchmark.measure(args)
        sys.stdout.write((json.dumps(rows) if args.json else table(rows)) + "\n")

    parser.set_defaults(run=run)


def _add_plan(plan: argparse.ArgumentParser) -> None:
    plan.set_defaults(run=_plan)
    plan.add_argument("--lengths", required=True, metavar="FILE|NAME")
    plan.add_argument("--tokens", type=int, default=262144, help="of a packed sequence")
    plan.add_argument("--pool", type=int, default=8, help="sequences of a pool, P")
    plan.add_argument("--cp", type=int, default=8, help="ranks of a CP group, C")
    plan.add_argument("--kv-heads", type=int, default=8)
    plan.add_argument("--heads", type=int, default=32, help="query heads")
    plan.add_argument("--packs", type=int, default=200)
    plan.add_argument("--block-rows", type=int, default=128)
    plan.add_argument("--memory-permille", type=int, default=PlanSettings().memory_permille)
    plan.add_argument("--seed", type=int, default=0)
    plan.add_argument("--json", action="store_true", help="one JSON object")


def _plan(args: argparse.Namespace) -> None:
    case = PlanCase(
        lengths=args.lengths,
        tokens=args.tokens,
        pool=args.pool,
        heads=HeadSplit(query_heads=args.heads, kv_heads=args.kv_heads, cp=args.cp),
        packs=args.packs,
        settings=PlanSettings(block_rows=args.block_rows, memory_permille=args.memory_permille),
        seed=args.seed,
    )
    _print(measure_plans(case), as_json=args.json)


def _print(figures: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:20} {value}\n")


if __name__ == "__main__":
    main()
