"""The figures of the cost model as Markdown, and where asked into RESULTS.md.

.venv/bin/python benchmarks/cost_model_table.py --quick
LIBRA_DATA=~/data .venv/bin/python benchmarks/cost_model_table.py --write
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results_section import write_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
_PACKED = "attention-h100-packed.csv"
_QUICK = {
    "tiles": ("--tiles", "10", "--longest", "512", "--passes", "2", "--orders", "4"),
    "job": ("--packs", "16", "--tokens", "1024", "--lengths", "wikipedia"),
}
_GOALS = {
    "packed": "Goal: means of shapes of at most 1.6 % weighted and 4.5 % MAPE.",
    "tiles": (
        "Goal, forward and backward together: whole tiles 3 % weighted and 8 % MAPE, cut ones 5 % "
        "and 6 %; 40 observations in nine of ten orders."
    ),
    "job": "Goal: rank totals within 5 %.",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--write", nargs="?", type=Path, const=RESULTS, metavar="FILE", help="(RESULTS.md)")
    add("--quick", action="store_true", help="sizes that prove nothing, never into RESULTS.md")
    add("--clock", choices=("cpu", "wall"), default="cpu", help="of tiles and job (%(default)s)")
    add("--timeout-s", type=float, default=3600.0, help="of each part (%(default)g)")
    args = parser.parse_args()
    text = "\n\n".join(_sections(args)) + "\n"
    sys.stdout.write(text)
    if args.write and not (args.quick and args.write == RESULTS):
        write_section(args.write, "model", text)


def _sections(args: argparse.Namespace) -> list[str]:
    timed = {
        name: (name, "--clock", args.clock, *(_QUICK[name] if args.quick else ()))
        for name in _QUICK
    }
    return [
        "### Measured H100 packs\n\n" + _packed(args.timeout_s),
        "### Tiles on this machine\n\n" + _part("tiles", timed["tiles"], args.timeout_s),
        "### Ranks of a job\n\n" + _part("job", timed["job"], args.timeout_s),
    ]


def _packed(timeout_s: float) -> str:
    folder = os.environ.get("LIBRA_DATA", "")
    path = Path(folder) / _PACKED
    if not folder or not path.is_file():
        return f"Not measured: LIBRA_DATA names no folder with {_PACKED}."
    return f"{_PACKED}. {_part('packed', ('--packed', str(path)), timeout_s)}"


def _part(name: str, arguments: tuple[str, ...], timeout_s: float) -> str:
    script = ROOT / "benchmarks" / "cost_model.py"
    return f"{_GOALS[name]}\n\n{_run(script, arguments, timeout_s)}"


def _run(script: Path, arguments: tuple[str, ...], timeout_s: float) -> str:
    """Return what a benchmark prints, or why it does not: one part must not cost the others."""
    try:
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"Not measured: {script.name} took more than {timeout_s:g} s."
    if done.returncode:
        return f"Not measured: {script.name}: {done.stderr.strip().splitlines()[-1:]}"
    return done.stdout.strip()


if __name__ == "__main__":
    main()
