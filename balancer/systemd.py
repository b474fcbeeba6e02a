"""What systemd and a service say to each other: sockets handed over, news of its state.

The protocol is a few datagrams and variables; see sd_notify(3) and sd_listen_fds(3).
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, MutableMapping

_FIRST_FD = 3


def handed_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd listens on for this process, if any; ask once.

    Raises:
        ValueError: a variable is malformed.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count or pid != str(os.getpid()):
        return []
    if not count.isdecimal():
        raise ValueError(f"LISTEN_FDS={count!r}: must be a number")
    handed = []
    for number in range(_FIRST_FD, _FIRST_FD + int(count)):
        os.set_inheritable(number, False)
        handed.append(socket.socket(fileno=number))
    return handed


class Notifier:
    """Tells systemd how the service is; says nothing where nobody asked to be told."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self.watchdog_s = _watchdog_s(environ)

    def tell(self, *lines: str) -> None:
        """Send lines such as ``READY=1``; a manager that is gone is no reason to fail."""
        if not self._address:
            return
        with contextlib.suppress(OSError), _datagrams() as channel:
            channel.connect(self._address)
            channel.sendall("\n".join(lines).encode())

    async def keep_watchdog(self) -> None:
        """Show twice within the manager's patience that the event loop runs, for ever."""
        while self.watchdog_s > 0:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)


def _datagrams() -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)
    return channel


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Return how long the manager waits for a sign of life, 0 where it does not."""
    text, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(text) / 1e6
