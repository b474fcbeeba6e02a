"""An Ethernet switch in user space whose ports delay: run by ``slow_link`` in its own namespace.

    delayed_switch.py PORTS DELAY_SECONDS BYTES_PER_SECOND

Makes the tap devices port0, port1, ..., says "ready" and forwards frames between them until its
input closes. A frame leaves DELAY_SECONDS after it came, and a port sends one frame after the
other at its rate.
"""

import contextlib
import fcntl
import heapq
import os
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 65536
# Frames taken from one port before the others have their turn.
_TURN = 32


class DelayedSwitch:
    """Learns which address is behind which port; holds each frame until it is due."""

    def __init__(self, ports: int, delay_s: float, bytes_per_s: float) -> None:
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._taps = [_open_tap(f"port{port}") for port in range(ports)]
        self._free_at = [0.0] * ports
        self._port_of: dict[bytes, int] = {}
        self._held: list[tuple[float, int, int, bytes]] = []
        self._frames = 0

    def serve(self, until: int) -> None:
        """Forward until the descriptor ``until`` has something to read or is closed."""
        while True:
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            readable, _, _ = select.select([until, *self._taps], [], [], wait)
            if until in readable:
                return
            for port, tap in enumerate(self._taps):
                if tap in readable:
                    self._take(port)
            self._release()

    def _take(self, port: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_TURN):
                frame = os.read(self._taps[port], _FRAME_BYTES)
                self._port_of[frame[6:12]] = port
                known = self._port_of.get(frame[:6])
                others = (other for other in range(len(self._taps)) if other != port)
                for target in others if known is None else (known,):
                    self._hold(target, frame)

    def _hold(self, port: int, frame: bytes) -> None:
        arrival = time.monotonic() + self._delay_s
        due = max(arrival, self._free_at[port]) + len(frame) / self._bytes_per_s
        self._free_at[port] = due
        self._frames += 1
        heapq.heappush(self._held, (due, self._frames, port, frame))

    def _release(self) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(self._held)
            # A device that is not up yet, or no more, loses the frame as a cable would.
            with contextlib.suppress(OSError):
                os.write(self._taps[port], frame)


def _open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def main() -> None:
    switch = DelayedSwitch(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
    print("ready", flush=True)
    switch.serve(until=sys.stdin.fileno())


if __name__ == "__main__":
    main()
