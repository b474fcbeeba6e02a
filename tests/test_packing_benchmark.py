"""The benchmark of packing measures a process of its own, and runs as documented."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "benchmarks/packing.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("method", ["stream", "best_fit"])
def test_figures_are_one_object(method: str) -> None:
    """``--json`` has seconds, bytes and what packing came to."""
    size = ("--documents", "3000", "--tokens", "8192", "--lengths", "wikipedia")
    done = _run("--method", method, *size, "--json")

    assert not done.returncode, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["method"], figures["documents"], figures["tokens"]) == (method, 3000, 8192)
    assert figures["segments"] >= 3000
    assert min(figures["seconds"], figures["walk_seconds"]) > 0
    before, after, packing, peak = (
        figures[name]
        for name in (
            "peak_bytes_before_import",
            "peak_bytes_after_import",
            "peak_bytes_of_packing",
            "peak_bytes",
        )
    )
    # A bare interpreter: nothing of the parent's, or of the draw's, memory is in it.
    assert 1 << 20 < before < 25 << 20
    assert before < after <= packing <= peak


def test_streams_need_little_memory() -> None:
    """Packing and walking an epoch takes some tens of bytes a document, so 10 M fit 500 MB."""
    done = _run("--documents", "2000000", "--json")

    assert not done.returncode, done.stderr
    figures = json.loads(done.stdout)
    assert figures["peak_bytes"] - figures["peak_bytes_after_import"] < 40 * figures["documents"]


def test_figures_are_lines_to_read() -> None:
    """Without ``--json`` each figure has its line, the sentence for people among them."""
    done = _run("--documents", "100", "--tokens", "1024")

    assert not done.returncode, done.stderr
    assert "report                     stream: 100 documents in" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "nothing"), "lengths=nothing: must be a file or one of"),
        (("--documents", "0"), "documents=0: must be at least 1"),
        (("--documents", "9", "--method", "first_fit"), "packing='first_fit': must be 'best_fit'"),
        (("--documents", "9", "--tokens", "0"), "tokens=0: must be"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    """A user's mistake is no traceback, though it comes from a child."""
    done = _run(*arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
