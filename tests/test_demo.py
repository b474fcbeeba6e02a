"""The demo as a user runs it: its figures, its ways to stop, and what it says to bad input."""

import json
import os
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from libra.examples.demo_settings import DemoSettings
from libra.examples.pairs import read_pairs
from libra.examples.summary import TOLERANCE
from tests.running import ROOT, wait_for

# Two ranks judged by CPU time: other programs on the machine do not matter then. Should no policy
# come, training ends by itself before the test's patience does.
TINY = ["--ranks=2", "--clock=cpu", "--tokens=1024", "--pairs=2", "--port=0", "--max-minutes=6"]
START_S = 120.0

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@contextmanager
def demo(out: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a tiny demo that writes below ``out``; kill it at the end if it still runs."""
    command = [sys.executable, "-m", "libra.balancer", "demo", *TINY, "--out", str(out), *options]
    with (
        (out / "demo.log").open("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=ROOT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def serving(out: Path) -> int | None:
    """Return the process id of the demo's balancer, None if there is none yet."""
    return next((pid for pid, line in children(out).items() if " serve " in line), None)


def said(out: Path) -> str:
    return (out / "demo.log").read_text()


def children(out: Path) -> dict[int, str]:
    """Command lines of the processes that belong to the demo below ``out``, by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has just ended
                continue
            if str(out) in line and " demo " not in line:
                found[int(folder.name)] = line
    return found


@pytest.mark.dist
@pytest.mark.fault
@pytest.mark.timeout(600)
@linux_only
def test_demo_measures_both_and_outlives_its_balancer(tmp_path: Path) -> None:
    """A run whose balancer is killed in the middle still ends with figures that hold together."""
    figures, picture = tmp_path / "figures.json", tmp_path / "skew.svg"
    with demo(tmp_path, "--json", str(figures), "--plot", str(picture)) as process:
        balancer = wait_for(lambda: serving(tmp_path), START_S)
        # It answers no more, so no policy comes and the run cannot end before the kill.
        wait_for(lambda: list(tmp_path.glob("*/training.log")), START_S)
        os.kill(balancer, signal.SIGSTOP)
        wait_for(lambda: list(tmp_path.glob("*/pairs.jsonl")), START_S)
        os.kill(balancer, signal.SIGKILL)
        status = process.wait(500)

    assert status == 0, said(tmp_path)
    assert "The balancer ended with status -9; training goes on." in said(tmp_path)
    _check_figures(json.loads(figures.read_text()))
    pairs = read_pairs(next(tmp_path.glob("*/pairs.jsonl")))
    assert any(pair.libra.sent_bytes for pair in pairs if not pair.warmup)
    assert "<svg" in picture.read_text()
    assert children(tmp_path) == {}


def _check_figures(summary: dict[str, Any]) -> None:
    # A busy machine makes pairs unsteady, and the demo says so; the asked number still counts.
    assert summary["verdict"] == "ok" or summary["verdict"].startswith("inconclusive: in ")
    assert (summary["pairs"], summary["ranks"], summary["clock"]) == (2, 2, "cpu")
    assert summary["warmup_pairs"] >= 1
    for side in ("baseline", "libra"):
        skew = summary[side]["skew"]
        assert 1.0 <= skew["mean"] <= skew["p95"] <= skew["worst"] <= 2.0
        assert summary[side]["step_seconds"]["median"] > 0
    assert summary["max_gradient_difference"] <= TOLERANCE
    assert summary["max_loss_difference"] <= TOLERANCE
    assert summary["perfect_speedup"] >= 1.0
    policies = summary["policies"]
    # The ranks may hear of it at different steps: the first to reach a step proposes for all.
    assert policies[0]["version"] >= 1
    assert policies[0]["first_step"] <= summary["warmup_pairs"]


@pytest.mark.dist
@pytest.mark.fault
@pytest.mark.timeout(400)
@linux_only
@pytest.mark.parametrize("moment", ["balancer.log", "training.log", "pairs.jsonl"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_stopping_leaves_no_process(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    """Ctrl-C, or even a kill -9, while it starts, while ranks start, while they train."""
    with demo(tmp_path, "--pairs", "10000") as process:  # no end of its own
        wait_for(lambda: list(tmp_path.glob(f"*/{moment}")), START_S)
        process.send_signal(number)
        status = process.wait(60)

    assert status == (130 if number == signal.SIGINT else -number), said(tmp_path)
    assert "Traceback" not in said(tmp_path)
    wait_for(lambda: not children(tmp_path), 60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--ranks", "3"], "--ranks 3: must be at least 2 and a multiple of --cp times --pool, 2"),
        (["--cp", "4"], "--cp 4: must divide the model's 2 kv heads"),
        (["--pairs", "0"], "--pairs 0: must be at least 1"),
        (["--json", "/nowhere/x.json"], "cannot write /nowhere/x.json: no writable folder"),
        (["--plot", "skew.gif"], "--plot skew.gif: must end in one of"),
        (["--out", "/dev/null/out"], "cannot make /dev/null/out"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, options: list[str], message: str) -> None:
    """What cannot work is named before anything starts, with a status that is not 0."""
    ended = _refuse(tmp_path, "--ranks", "2", "--pool", "2", "--port", "0", *options)

    assert message in ended.stderr.splitlines()[-1]
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """The port of another program is refused, and how to get one is said."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = _refuse(tmp_path, "--ranks", "2", "--port", str(port))

    line = f"libra demo: --port {port}: address already in use; --port 0 takes a free one"
    assert ended.stderr.splitlines() == [line]


def test_one_core_is_too_few_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share cores are started only when asked for, and judged by CPU time."""
    monkeypatch.setattr("libra.examples.demo_settings.usable_cores", lambda: 1)
    options = {"ranks": None, "cp": 1, "pool": None, "clock": None, "port": 0}

    with pytest.raises(ValueError, match="offers 1 core, and balancing takes 2; --ranks 2"):
        DemoSettings.from_arguments(Namespace(**options))
    asked = DemoSettings.from_arguments(Namespace(**options | {"ranks": 4}))

    assert (asked.ranks, asked.pool, asked.clock) == (4, 2, "cpu")


def _refuse(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "libra.balancer", "demo", *options]
    environ = {**os.environ, "PYTHONPATH": _absolute(os.environ.get("PYTHONPATH", ""))}
    ended = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=110, check=False
    )

    assert ended.returncode != 0
    return ended


def _absolute(path: str) -> str:
    return os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep) if part)
