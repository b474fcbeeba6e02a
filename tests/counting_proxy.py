"""A TCP proxy on loopback that counts connections: whatever is said over them, TLS too."""

import asyncio
import contextlib
import threading
from typing import Self


class CountingProxy:
    """Listen in a thread of its own and forward to ``upstream``, a port on loopback.

    Attributes:
        connections: made so far.
    """

    def __init__(self, upstream: int) -> None:
        self.connections = 0
        self.port = 0
        self._upstream = upstream
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="counting-proxy", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._stop.wait()
            own = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not own]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))
        finally:
            up_writer.close()
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
