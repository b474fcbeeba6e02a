"""``libra replay``: a recorded job in, what its steps lose their time to out."""

import argparse
import json
import sys
from pathlib import Path

from libra.balancer.recorded import examine
from libra.balancer.recorded_cause import recorded_diagnosis
from libra.balancer.replay_report import as_object, show
from libra.balancer.trace_files import read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra replay``."""
    parser.add_argument("trace", type=Path, help="operations: Parquet, or CSV, gzipped or not")
    parser.add_argument("--meta", type=Path, help="YAML with the sizes of the mesh (from the rows)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Read, judge, print; return the exit status."""
    try:
        job = examine(read_trace(args.trace, args.meta))
    except ValueError as error:
        sys.stderr.write(f"libra replay: {error}\n")
        return 2
    diagnosis = recorded_diagnosis(job)
    if args.json:
        sys.stdout.write(json.dumps(as_object(job, diagnosis), allow_nan=False) + "\n")
    else:
        show(job, diagnosis)
    return 0
