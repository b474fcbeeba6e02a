"""A TCP network between a balancer and its database that can be cut without a word.

Both sides' connections stay open and their bytes are taken, so nobody is told. What was taken
during the cut is delivered when the network is mended, as a real one does with late packets.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator


class CutNetwork:
    """Forward a loopback port to another; ``cut`` holds the connections that are there."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._through = threading.Event()
        self._through.set()
        self._news_through = threading.Event()
        self._news_through.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, new_ones_too: bool = True) -> None:
        """Let nothing through on open connections, nor on new ones."""
        self._through.clear()
        if new_ones_too:
            self._news_through.clear()

    def mend(self) -> None:
        """Deliver what was held and all that follows."""
        held, self._through = self._through, self._news_through
        self._news_through.set()
        held.set()

    def close(self) -> None:
        # A thread waits in it: closing alone would leave it listening.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                through = self._through if self._through.is_set() else self._news_through
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(
                        target=_forward, args=(source, sink, through), daemon=True
                    ).start()


def _forward(source: socket.socket, sink: socket.socket, through: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while body := source.recv(1 << 16):
            through.wait(100)
            sink.sendall(body)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def network_to(port: int) -> Iterator[CutNetwork]:
    network = CutNetwork(port)
    try:
        yield network
    finally:
        network.close()
