"""Child processes of the demo: each in a session of its own, none left behind.

A session of its own keeps a terminal's Ctrl-C from reaching the children before the demo decides
in which order they stop. ``libra.examples.launch`` ends them when the demo is killed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class Child:
    """A running Python module whose output goes to a log."""

    def __init__(
        self, module: str, arguments: Sequence[str], log: Path, environ: Mapping[str, str]
    ) -> None:
        launch = [sys.executable, "-m", "libra.examples.launch", f"--parent={os.getpid()}"]
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*launch, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    def last_lines(self, count: int = 15) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end; after the grace, kill it and its children."""
        if self.status is None:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._kill()

    def _kill(self) -> None:
        # torchrun gives its workers sessions of their own: its group alone would not do.
        for process in [self._process.pid, *_descendants(self._process.pid)]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()


def _descendants(process: int) -> list[int]:
    """Return the ids of a process's descendants; none where the system has no /proc."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:  # it has ended meanwhile
        return found
    return found + [pid for child in found for pid in _descendants(child)]
