"""A real ``libra serve`` from its start to its end: systemd, sockets, signals, statuses."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.running import ROOT, running_balancer, serve, wait_for

DEADLINE = """
import time
from libra.balancer.server import _deadline
with _deadline(0.1):
    time.sleep(60)
"""


@contextmanager
def manager(path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd hears of its services."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(60)
        yield heard


def hear(manager: socket.socket, until: str) -> list[str]:
    """Return the lines that a manager is told, up to the one that is waited for."""
    lines: list[str] = []
    while until not in lines:
        lines += manager.recv(4096).decode().splitlines()
    return lines


def test_under_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Unix socket: ready when it answers, alive by the event loop, stopping, and gone.

    The address is in its file while the balancer is ready and no longer; the log is JSON.
    """
    paths = [tmp_path / name for name in ("notify", "s.sock", "address.json", "log")]
    notify, uds, address, log = paths
    monkeypatch.setenv("NOTIFY_SOCKET", str(notify))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    options = ("--uds", str(uds), "--address-file", str(address), "--log-level", "debug")

    with (
        manager(notify) as systemd,
        log.open("w") as errors,
        serve(tmp_path / "s.sqlite", *options, stderr=errors) as process,
    ):
        assert "STATUS=Serving." in hear(systemd, "READY=1")
        assert json.loads(address.read_text()) == {"url": f"unix://{uds}", "pid": process.pid}
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(uds))) as client:
            assert client.get("http://libra/readyz").status_code == 200
        for _ in range(2):
            hear(systemd, "WATCHDOG=1")
        process.terminate()
        hear(systemd, "STOPPING=1")
        assert process.wait(60) == 0

    assert not uds.exists()
    assert not address.exists()
    lines = log.read_text().splitlines()
    assert all({"time", "level", "event"} <= json.loads(line).keys() for line in lines)


def activate(listener: socket.socket, store: Path) -> "subprocess.Popen[str]":
    """Start a balancer as systemd does: its sockets begin at 3, and it is told so."""
    script = (
        f"exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 "
        f"exec {sys.executable} -m libra.balancer serve --port 1 --store {store}"
    )
    return subprocess.Popen(
        ["bash", "-c", script],
        pass_fds=[listener.fileno()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_socket_activation(tmp_path: Path) -> None:
    """A client that was there before the balancer is answered, on systemd's socket."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with activate(listener, tmp_path / "s.sqlite") as process:
            try:
                assert httpx.get(f"{url}/livez", timeout=60).status_code == 200
                process.terminate()
                output, _ = process.communicate(timeout=60)
            finally:
                process.kill()

    assert f"LIBRA_BALANCER={url} " in output
    assert process.returncode == 0


def test_a_socket_of_systemd_that_others_reach_is_refused(tmp_path: Path) -> None:
    """What a unit file hands over is held to the same rule as an address that is set."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        with activate(listener, tmp_path / "s.sqlite") as process:
            _, errors = process.communicate(timeout=60)

    assert process.returncode == 2
    assert "host='0.0.0.0'" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(("drain", "signals", "status"), [("0.5", 1, 0), ("3000", 2, 1)])
def test_a_stuck_request_does_not_hold_it_up(
    tmp_path: Path, drain: str, signals: int, status: int
) -> None:
    """It is cut off at half of the stated time; a second signal does not wait for that."""
    with running_balancer(tmp_path / "s.sqlite", "--drain-s", drain) as running:
        port = httpx.URL(running.url).port
        with socket.create_connection(("127.0.0.1", port)) as stuck:
            stuck.sendall(
                b"POST /api/v1/jobs/j/reports HTTP/1.1\r\nHost: h\r\n"
                b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            wait_for(lambda: running.client.get("/livez").status_code == 200)
            for number in range(signals):
                if number:
                    # The first one was seen: nobody is let in any more.
                    wait_for(lambda: refuses("127.0.0.1", port))
                running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(60) == status


def refuses(host: str, port: int | None) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return True
    return False


def test_a_hung_disk_does_not_hold_it_up_for_ever() -> None:
    """What cannot be written in time is given up, with status 1."""
    ended = subprocess.run([sys.executable, "-c", DEADLINE], cwd=ROOT, timeout=60)

    assert ended.returncode == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--address-file", "/proc/none/a"], "cannot write the address file"),
        (["--uds", "/proc/none/s.sock"], "cannot listen on /proc/none/s.sock"),
    ],
)
def test_what_cannot_be_served_ends_with_status_1(
    tmp_path: Path, options: list[str], text: str
) -> None:
    """One line says why, and the process ends by itself."""
    errors = tmp_path / "errors"
    with (
        errors.open("w") as file,
        serve(tmp_path / "s.sqlite", *options, stderr=file) as process,
    ):
        assert process.wait(60) == 1

    assert text in errors.read_text()
    assert len(errors.read_text().splitlines()) == 1


def test_the_environment_sets_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real start obeys variables and file, and wrong ones end it with status 2."""
    file = tmp_path / "libra.toml"
    file.write_text('mode = "adapt"\nroot_path = "/libra"\n')
    monkeypatch.setenv("LIBRA_CONFIG", str(file))
    monkeypatch.setenv("LIBRA_QUEUE_SIZE", "77")

    with running_balancer(tmp_path / "s.sqlite") as running:
        status = running.client.get("/libra/api/v1/status").json()
        assert status["queue"]["capacity"] == 77
    result = subprocess.run(
        [sys.executable, "-m", "libra.balancer", "serve"],
        env=os.environ | {"LIBRA_PORT": "first"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )

    assert result.returncode == 2
    assert result.stderr == "libra serve: LIBRA_PORT=first: must be an integer\n"
