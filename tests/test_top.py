"""``libra top`` on a real terminal: it follows, survives a restart, and leaves at ``q``."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from libra.balancer.top_feed import Seen
from libra.balancer.top_frame import job_frame, jobs_frame
from tests.feed import Feed
from tests.nginx import free_port
from tests.running import ROOT, running_balancer


class Terminal:
    """A terminal with a command in it; ``screen`` is what was drawn so far."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self.screen = ""
        self.process = subprocess.Popen(
            # Ctrl-C goes to those whose terminal it is.
            ["setsid", "--ctty", sys.executable, "-m", "libra.balancer", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(slave)

    def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
        """Wait until a text is drawn anew."""
        self.screen = ""
        deadline = time.monotonic() + timeout_s
        while text not in self.screen:
            assert time.monotonic() < deadline, self.screen[-4000:]
            self.read()

    def read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                self.screen += os.read(self._master, 65536).decode(errors="replace")

    def press(self, key: str) -> int:
        """Press a key; return the status that the command ends with."""
        os.write(self._master, key.encode())
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        return self.process.wait(1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    with contextlib.closing(Terminal(*arguments)) as opened:
        yield opened


def test_it_follows_and_survives_a_restart(tmp_path: Path) -> None:
    """A step is drawn as it comes; while the balancer is away it says so; then it goes on."""
    port = free_port()
    store, options = tmp_path / "s.sqlite", ("--port", str(port))
    with contextlib.ExitStack() as stack:
        with running_balancer(store, *options) as balancer:
            feed = Feed(balancer=balancer, job="watched")
            feed.run(3)
            url = ("--url", balancer.url)
            top = stack.enter_context(terminal("top", "watched", *url))
            top.wait_for("live")
            top.wait_for("step 2,")
            feed.run(1)
            top.wait_for("step 3,")
            # It writes what it knows before it goes.
            balancer.process.terminate()
            balancer.process.wait(60)
        top.wait_for("no connection")
        assert "watched" in top.screen
        with running_balancer(store, *options) as balancer:
            top.wait_for("live")
            feed.balancer = balancer
            feed.run(1)
            top.wait_for("step 4,")
            assert top.press("q") == 0
            everything = stack.enter_context(terminal("top", *url))
            everything.wait_for("watched")
            everything.wait_for("live")
            assert everything.press("\x03") == 0


def drawn(frame: Any) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        console.print(frame)
    return capture.get()


def summary(name: str, state: str, skew: float | None) -> dict[str, Any]:
    return {"job": name, "state": state, "mode": "observe", "skew": skew, "step": 1}


def test_the_worst_running_job_is_on_top_and_the_rest_is_counted() -> None:
    """What does not fit is said; a name is never taken for markup."""
    jobs = [
        summary("done", "finished", 9.0),
        summary("even", "active", 1.0),
        summary("[red]", "active", 2.0),
        summary("new", "active", None),
    ]
    text = drawn(jobs_frame(Seen(jobs=jobs), url="u", connection="live", height=9))
    lines = text.splitlines()

    assert "live" in lines[0]
    assert [line.split()[0] for line in lines[3:6]] == ["[red]", "even", "new"]
    assert "and 1 more" in lines[6]


@pytest.mark.parametrize("ranks", [[], [{"rank": 0, "kernel_seconds": None}]])
def test_a_job_without_steps(ranks: list[dict[str, Any]]) -> None:
    """It is shown all the same, and an error beside what was known."""
    seen = Seen(jobs=[summary("j", "stale", None)], ranks=ranks, error="gone")
    text = drawn(job_frame(seen, url="u", connection="no connection", height=30))

    assert "No step is complete yet." in text
    assert "gone" in text
