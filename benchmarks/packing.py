"""Seconds and memory to pack an epoch, in a process that does nothing else.

.venv/bin/python benchmarks/packing.py --documents 10000000 --lengths libra --method stream

Only what a process needs to measure itself is loaded at the top: a child's peak memory counts from
its parent's, so the parent loads nothing, and lengths are drawn by another child.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_TIMEOUT_S = 1800
# Sequences whose segments are made at a time: an optimizer step's.
_TAKEN = 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000_000, help="(%(default)s)")
    parser.add_argument("--lengths", default="libra", metavar="FILE|NAME", help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=262144, help="of a sequence (%(default)s)")
    parser.add_argument("--method", default="stream", help="or best_fit (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--child", choices=_CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.documents < 1:
            raise ValueError(f"documents={args.documents}: must be at least 1")
        if args.child:
            _CHILDREN[args.child](args)
        else:
            _print(_measure_in_children(), as_json=args.json)
    except ValueError as error:
        parser.error(str(error))


def _measure_in_children() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "lengths.npy")
        _run_child("draw", file)
        figures: dict[str, Any] = json.loads(_run_child("measure", file))
        return figures


def _run_child(child: str, file: str) -> str:
    """Return what a child with this command's options prints; exit as it does where it fails."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", child, "--file", file]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def _draw(args: argparse.Namespace) -> None:
    import numpy as np

    from benchmarks.lengths import family

    drawn = family(args.lengths)(np.random.default_rng(args.seed), args.documents)
    np.save(args.file, drawn.astype(np.uint32 if drawn.max() < 1 << 32 else np.int64))


def _measure(args: argparse.Namespace) -> None:
    """Print seconds, peaks of memory and the report as JSON."""
    at_start = _peak_bytes()
    import numpy as np

    from libra.balancer.lengths import load_lengths
    from libra.balancer.packing import pack

    imported = _peak_bytes()
    begin = time.perf_counter()
    lengths = load_lengths(args.file)
    packed = pack(lengths, tokens=args.tokens, seed=args.seed, epoch=0, method=args.method)
    packing_s, packing_bytes = time.perf_counter() - begin, _peak_bytes()

    begin = time.perf_counter()
    segments = 0
    for first in range(0, len(packed), _TAKEN):
        segments += len(packed.take(np.arange(first, min(first + _TAKEN, len(packed))))[0])
    walking_s = time.perf_counter() - begin
    report = packed.report
    names = ("documents", "document_tokens", "sequences", "padding_tokens", "padding_fraction")
    figures = {
        "seconds": packing_s,
        "walk_seconds": walking_s,
        "peak_bytes": _peak_bytes(),
        "peak_bytes_of_packing": packing_bytes,
        "peak_bytes_before_import": at_start,
        "peak_bytes_after_import": imported,
        "segments": segments,
        "method": report.method,
        "tokens": report.tokens,
        **{name: getattr(report, name) for name in names},
        "cut_documents": report.cut_documents,
        "sequences_over_stream": report.sequences_over_stream,
        "report": str(report),
    }
    sys.stdout.write(json.dumps(figures))


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _print(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:26} {value}\n")


_CHILDREN = {"draw": _draw, "measure": _measure}


if __name__ == "__main__":
    main()
