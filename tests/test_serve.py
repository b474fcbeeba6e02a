"""``libra serve`` starts with one look at the screen, fails with one line, and stops in seconds."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from libra.balancer import __main__ as command
from libra.balancer.policy import HOME_POLICY
from tests.running import ROOT, make_report, running_balancer, wait_for


def assert_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    """Run ``libra serve`` in this process: it must end at once, with one line of why."""
    assert command.main(["serve", *arguments]) == status
    errors = capsys.readouterr().err
    assert text in errors
    assert len(errors.splitlines()) == 1, errors


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names the address, and the store is not touched."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        arguments = ["--port", str(port), "--store", str(tmp_path / "s.sqlite")]
        assert_one_line(capsys, arguments, 1, f"cannot listen on 127.0.0.1:{port}: in use")

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("missing/s.sqlite", "there is no directory"),
        ("", "cannot open the store"),
        ("/proc/s.sqlite", "cannot open the store /proc/s.sqlite"),
    ],
    ids=["no directory", "a directory", "no place for files"],
)
def test_a_store_that_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, text: str
) -> None:
    """One line says which path and why; nothing is served without a memory."""
    assert_one_line(capsys, ["--port", "0", "--store", str(tmp_path / path)], 1, text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "0.0.0.0"], "host='0.0.0.0': must be a loopback address"),
        (["--host", "::"], "host='::': must be a loopback address"),
        (["--host", "192.0.2.1"], "host='192.0.2.1': must be a loopback address"),
        (["--host", "balancer.example"], "host='balancer.example': must be a loopback address"),
        (["--port", "70000"], "port=70000: must be in 0..65535"),
    ],
)
def test_settings_that_cannot_be(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """One line with the setting, its value and what is allowed; nothing listens beyond loopback."""
    assert_one_line(capsys, arguments, 2, text)


@pytest.mark.parametrize("arguments", [["serve", "--prot", "1"], ["sreve"], []])
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Status 2 and a hint, as of any command."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)

    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_version_loads_nothing() -> None:
    """A question about the command is answered at once, without the service's libraries."""
    code = (
        "import sys; from libra.balancer.__main__ import main\n"
        "try: main(['--version'])\n"
        "finally: assert not {'fastapi', 'sklearn', 'torch'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert (result.returncode, result.stdout[:6]) == (0, "libra "), result.stderr


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
            answers.append(httpx.get(url, headers=known, timeout=60).status_code)

        polling = threading.Thread(target=poll)
        with running.client.stream("GET", "/api/v1/jobs/j/events") as events:
            lines = events.iter_lines()
            assert next(lines).startswith("retry")
            polling.start()
            metrics = f"{running.url}/metrics"
            wait_for(lambda: "libra_policy_polls 1.0" in httpx.get(metrics, timeout=20).text)
            running.process.send_signal(number)
            # Heartbeats are no events.
            assert [line for line in lines if line and not line.startswith(":")] == []
            # Less than the poll would have waited.
            assert running.process.wait(40) == 0
        polling.join(70)

    assert answers == [304]
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
