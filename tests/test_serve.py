"""``libra serve`` starts with one look at the screen, fails with one line, and stops in seconds."""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from libra.balancer import __main__ as command
from libra.balancer.policy import HOME_POLICY
from tests.running import ROOT, make_report, running_balancer, wait_for


def libra(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "libra.balancer", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


def assert_one_line(result: "subprocess.CompletedProcess[str]", status: int, text: str) -> None:
    assert result.returncode == status, result.stderr
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr


def test_a_port_in_use(tmp_path: Path) -> None:
    """One line names the address."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = libra("serve", "--port", str(port), "--store", str(tmp_path / "s.sqlite"))

    assert_one_line(result, 1, f"cannot listen on 127.0.0.1:{port}: in use")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("missing/s.sqlite", "there is no directory"),
        ("", "cannot open the store"),
    ],
)
def test_a_store_that_cannot_be_opened(tmp_path: Path, path: str, text: str) -> None:
    """One line says which path and why."""
    result = libra("serve", "--port", "0", "--store", str(tmp_path / path))

    assert_one_line(result, 1, text)


def test_a_store_in_a_place_that_takes_no_files() -> None:
    """Where nothing can be written the balancer does not start."""
    assert_one_line(libra("serve", "--port", "0", "--store", "/proc/s.sqlite"), 1, "/proc/s.sqlite")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "balancer.example"])
def test_beyond_loopback_nothing_listens(host: str) -> None:
    """There are no tokens yet, so there is no way to open the balancer to others."""
    result = libra("serve", "--host", host, "--port", "0")

    assert_one_line(result, 2, f"host={host!r}: must be a loopback address")


@pytest.mark.parametrize("arguments", [["serve", "--prot", "1"], ["sreve"], []])
def test_wrong_usage(arguments: list[str]) -> None:
    """Status 2 and a hint, as of any command."""
    result = libra(*arguments)

    assert result.returncode == 2
    assert "error:" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_impossible_port_is_wrong_usage() -> None:
    """The setting, its value and what is allowed."""
    assert_one_line(libra("serve", "--port", "70000"), 2, "port=70000: must be in 0..65535")


def test_the_version() -> None:
    """It loads no part of the service."""
    result = libra("--version")

    assert (result.returncode, result.stdout[:6]) == (0, "libra ")


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has no torch is told what to install."""
    (tmp_path / "needs_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(command._COMMANDS, "demo", ("needs_torch", "need torch"))

    assert command.main(["demo"]) == 1
    assert "pip install 'libra-balancer[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_seconds(tmp_path: Path, number: signal.Signals) -> None:
    """Open streams and long polls end; the status is 0; everything is on disk."""
    path = tmp_path / "s.sqlite"
    known = {"If-None-Match": f'"{HOME_POLICY.checksum}"'}
    answers: list[int] = []

    with running_balancer(path) as running:
        running.send(make_report("j"))

        def poll() -> None:
            url = f"{running.url}/api/v1/jobs/j/policy?wait=60"
            answers.append(httpx.get(url, headers=known, timeout=30).status_code)

        polling = threading.Thread(target=poll)
        with running.client.stream("GET", "/api/v1/jobs/j/events") as events:
            lines = events.iter_lines()
            assert next(lines).startswith("retry")
            polling.start()
            metric = "libra_policy_polls 1.0"
            wait_for(lambda: metric in httpx.get(f"{running.url}/metrics").text)
            start = time.monotonic()
            running.process.send_signal(number)
            assert not list(lines)[1:]
            assert running.process.wait(10) == 0
            seconds = time.monotonic() - start
        polling.join(10)

    assert answers == [304]
    assert seconds < 3
    with running_balancer(path) as running:
        assert running.send(make_report("j")).json()["duplicate"]


def test_the_default_store_needs_no_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's state directory is made when it is not there, for the user alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with subprocess.Popen(
        [sys.executable, "-m", "libra.balancer", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        process.terminate()
        process.stdout.read()

    assert address.startswith("Dashboard   http://127.0.0.1:")
    store = tmp_path / "state" / "libra" / "balancer.sqlite"
    assert store.exists()
    assert store.parent.stat().st_mode & 0o077 == 0
