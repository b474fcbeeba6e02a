"""Run the benchmarks of the balancer one after the other, and keep what they print.

Some write their section of RESULTS.md themselves; of the others what they print becomes it.

.venv/bin/python benchmarks/service.py --quick
.venv/bin/python benchmarks/service.py --write kill long_poll
"""

import argparse
import subprocess
import sys
from pathlib import Path

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import machine
from benchmarks.results_section import write_section

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
WRITERS = ("service_load", "kill", "do_no_harm")
NAMES = ("ingest", "service_load", "long_poll", "event_clients", "metrics_scrape", *WRITERS[1:])
_PACKAGES = ("fastapi", "uvicorn", "msgspec", "numpy")
_TIMEOUT_S = 4 * 3600.0


def run(name: str, options: list[str], *, write: bool) -> str:
    """Run one benchmark, show what it prints, and return that.

    Raises:
        RuntimeError: it failed.
    """
    own = ["--write"] if write and name in WRITERS else []
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *options, *own]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S)
    print(f"\n### {name}\n\n{done.stdout}", flush=True)
    if done.returncode:
        raise RuntimeError(f"benchmarks/{name}.py ended with status {done.returncode}")
    return done.stdout


def section(text: str) -> str:
    """Return the Markdown of what a benchmark printed: tables as they are, other text as code."""
    lines = text.strip().splitlines()
    head = "" if "cores, Python" in text else f"{machine(*_PACKAGES)}.\n\n"
    if not any(line.startswith("|") for line in lines):
        return head + "\n".join(f"    {line}".rstrip() for line in lines)
    body = ""
    for before, line in zip(["", *lines], lines, strict=False):
        apart = line.startswith("|") != before.startswith("|") and before
        body += ("\n" if apart else "") + line + "\n"
    return head + body.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}; all by default")
    add("--quick", action="store_true", help="only try them, never into RESULTS.md")
    add("--write", action="store_true", help="into RESULTS.md as well")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"names={unknown}: must be some of {', '.join(NAMES)}")
    write = args.write and not args.quick
    for name in args.names or NAMES:
        printed = run(name, ["--quick"] * args.quick, write=write)
        if write and name not in WRITERS:
            title = name.replace("_", "-")
            write_section(RESULTS, title, section(printed), command="make bench-service")


if __name__ == "__main__":
    main()
