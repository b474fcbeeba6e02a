"""How well the cost model predicts: others' measurements, tiles on this machine, ranks of a job.

.venv/bin/python benchmarks/cost_model.py --packed attention-h100-packed.csv --json
.venv/bin/python benchmarks/cost_model.py tiles --clock cpu
.venv/bin/python benchmarks/cost_model.py job
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# By command: a module, loaded when it is asked for, since only these need torch.
COMMANDS = {"tiles": "cost_model_tiles", "job": "cost_model_job"}


def main() -> None:
    command = COMMANDS.get("".join(sys.argv[1:2]))
    benchmark = import_module(f"benchmarks.{command or 'cost_model_packed'}")
    parser = argparse.ArgumentParser(
        description=benchmark.__doc__ if command else f"{__doc__}\n{benchmark.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmark.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args(sys.argv[2 if command else 1 :])
    try:
        figures = benchmark.measure(args)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    text = json.dumps(figures) if args.json else benchmark.shown(figures)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
