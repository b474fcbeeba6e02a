"""Runs a benchmark's command as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_benchmark(
    script: str, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run ``benchmarks/script.py`` from the repository's root."""
    return subprocess.run(
        [sys.executable, f"benchmarks/{script}.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def figures_of(*arguments: str) -> dict[str, Any]:
    """Return the object that the placement benchmark prints."""
    done = run_benchmark("placement", *arguments, "--json")

    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
