"""One client's connection through the fault proxy: its requests, their faults, their answers."""

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.fault_proxy import Fault, FaultProxy

_CHUNK = 1 << 16
_MAX_HEADER = 1 << 16
# Header, then body.
Request = tuple[bytes, bytes]
Side = Literal["request", "answer"]


class Link:
    """Forward requests one by one; ``task`` is the one that does."""

    def __init__(
        self, proxy: "FaultProxy", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream: asyncio.StreamWriter | None = None
        self._answers: asyncio.Task[None] | None = None
        # What happens to the next piece of an answer.
        self._answer_fault: Fault | None = None

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        while True:
            fault = self._proxy.draw()
            if fault == "half_open":
                # Nothing is read and nothing is said: the connection stands, and that is all.
                self._fire(fault)
                await asyncio.Event().wait()
            header, body = await _read_request(self._reader)
            if not header:
                return
            await self._do(fault, header, body)

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self._close_upstream()

    def close(self) -> None:
        self._writer.close()
        self._close_upstream()

    async def _do(self, fault: "Fault | None", header: bytes, body: bytes) -> None:
        """Forward a request with its fault; raise ``ConnectionError`` where that ends the link."""
        proxy, request = self._proxy, header + body
        if fault is not None and fault not in ("reorder", "duplicate"):
            self._fire(fault)
        if fault == "drop":
            return  # swallowed: the client waits in vain
        side: Side = proxy.random.choice(("request", "answer"))
        if side == "answer" and fault in ("delay", "reset", "truncate", "slow_loris", "corrupt"):
            self._answer_fault, fault = fault, None
        if fault == "reset":
            self.reset()
            raise ConnectionResetError
        if fault == "delay":
            await asyncio.sleep(proxy.settings.delay_s * proxy.random.random())
        elif fault == "reorder" and await proxy.overtaken():
            self._fire(fault)
        elif fault == "corrupt":
            request = corrupted(request, proxy.random.randrange(len(request)))
        elif fault == "duplicate":
            self._fire(fault)
            await self._send_apart(request)
        upstream = await self._connected()
        if fault == "truncate":
            upstream.write(request[: proxy.random.randrange(len(request))])
            await upstream.drain()
            raise ConnectionAbortedError
        if fault == "slow_loris":
            request = await self._trickle(upstream, request)
        upstream.write(request)
        await upstream.drain()
        proxy.gone_by()

    async def _connected(self) -> asyncio.StreamWriter:
        if self._upstream is None or self._upstream.is_closing():
            self._close_upstream()
            reader, self._upstream = await asyncio.open_connection(
                "127.0.0.1", self._proxy.upstream
            )
            self._answers = asyncio.create_task(self._return(reader))
        return self._upstream

    async def _send_apart(self, request: bytes) -> None:
        """Send the request on a connection of its own, and wait until it was answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy.upstream)
        try:
            async with asyncio.timeout(self._proxy.settings.delay_s):
                writer.write(request)
                await reader.read(1)
        except (TimeoutError, OSError):
            pass
        finally:  # when cancelled, too
            writer.close()

    async def _return(self, reader: asyncio.StreamReader) -> None:
        """Pass answers on, with the faults that their requests have drawn."""
        proxy, client = self._proxy, self._writer
        with contextlib.suppress(OSError):
            while piece := await reader.read(_CHUNK):
                fault, self._answer_fault = self._answer_fault, None
                if fault == "reset":
                    self.reset()
                    return
                if fault == "delay":
                    await asyncio.sleep(proxy.settings.delay_s * proxy.random.random())
                elif fault == "corrupt":
                    piece = corrupted(piece, proxy.random.randrange(len(piece)))
                elif fault == "truncate":
                    client.write(piece[: proxy.random.randrange(len(piece))])
                    break
                elif fault == "slow_loris":
                    piece = await self._trickle(client, piece)
                client.write(piece)
                await client.drain()
        # The balancer has ended it, or died: so does the client's side.
        client.close()
        if self.task is not None:
            self.task.cancel()

    async def _trickle(self, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        """Send the first bytes one by one; return the others."""
        settings = self._proxy.settings
        for at in range(min(settings.trickle_bytes, len(data))):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(settings.trickle_s)
        return data[settings.trickle_bytes :]

    def _fire(self, fault: "Fault") -> None:
        self._proxy.fired[fault] += 1

    def _close_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None
        if self._answers is not None and self._answers is not asyncio.current_task():
            self._answers.cancel()
            self._answers = None


def corrupted(data: bytes, at: int) -> bytes:
    """Return the data with one bit of one byte flipped."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def _read_request(reader: asyncio.StreamReader) -> Request:
    """Return the next request; empty at the end of the connection."""
    try:
        header = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b"", b""
    assert len(header) <= _MAX_HEADER
    length = 0
    for line in header.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    return header, await reader.readexactly(length)
