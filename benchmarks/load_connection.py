"""One kept-alive HTTP connection that sends one request at a time, with as little as it takes."""

import asyncio
from collections.abc import Callable

# Status, body, seconds that Retry-After asks for.
OnAnswer = Callable[[int, bytes, float], None]
_RECONNECT_S = 0.2


class Connection(asyncio.Protocol):
    """Send requests and hand answers over; what was under way when it broke is sent again.

    Attributes:
        reconnects: how often it broke.
        busy: does a request wait for its answer?
    """

    def __init__(self, host: str, port: int, on_answer: OnAnswer) -> None:
        self.reconnects = 0
        self._address = host, port
        self._on_answer = on_answer
        self._transport: asyncio.Transport | None = None
        self._request = b""
        self._received = bytearray()
        self._closing = False

    @property
    def busy(self) -> bool:
        return bool(self._request)

    async def open(self) -> None:
        """Connect; raise ``OSError`` if that fails."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, *self._address)

    def send(self, request: bytes) -> None:
        """Send a request; only when none is under way."""
        self._request = request
        if self._transport is not None:
            self._transport.write(request)

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received.clear()
        if self._request:
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        header = bytes(self._received[:end]).lower()
        length = int(_value(header, b"content-length") or 0)
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        self._received.clear()
        self._request = b""
        self._on_answer(int(header[9:12]), body, float(_value(header, b"retry-after") or 0))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._closing:
            self.reconnects += 1
            asyncio.get_running_loop().create_task(self._again())

    async def _again(self) -> None:
        while not self._closing:
            await asyncio.sleep(_RECONNECT_S)
            try:
                await self.open()
            except OSError:
                continue
            return


def _value(header: bytes, name: bytes) -> bytes:
    """Return a header's value; empty if it is not there."""
    at = header.find(b"\r\n" + name + b":")
    if at < 0:
        return b""
    begin = at + len(name) + 3
    end = header.find(b"\r\n", begin)
    return header[begin : end if end >= 0 else len(header)].strip()
