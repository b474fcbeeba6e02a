"""A server-sent event stream as an HTTP answer, which ends with its client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fastapi import Response
from starlette.types import Receive, Scope, Send

from libra.balancer.broadcast import EventStream


class EventResponse(Response):
    """Send what a client of a stream follows, until it leaves, the stream ends, or it stalls.

    Starlette's own streaming answer wakes two tasks for each event; with a thousand clients that
    is most of the work. A client that does not read holds one buffer of the server's, and after
    ``stall_s`` its connection is cut off.
    """

    media_type = "text/event-stream"

    def __init__(self, stream: EventStream, last_id: int | None, *, stall_s: float) -> None:
        super().__init__(
            # nginx would hold events back until its buffer is full.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._stream = stream
        self._frames = stream.follow(last_id)
        self._stall_s = stall_s
        self._sending_since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.create_task(self._write(send, self._frames))
        task = asyncio.current_task()
        assert task is not None
        # A mere close would wait for ever for the buffer to empty. ASGI has no word for more.
        transport = getattr(getattr(receive, "__self__", None), "transport", None)
        self._look_later(getattr(transport, "abort", task.cancel))
        try:
            # Servers say so too once an answer is complete.
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            if self._timer is not None:
                self._timer.cancel()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer
            await self._frames.aclose()  # type: ignore[attr-defined]

    async def _write(self, send: Send, frames: AsyncIterator[bytes]) -> None:
        now_s = asyncio.get_running_loop().time
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for body in frames:
            self._sending_since_s = now_s()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._sending_since_s = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _look_later(self, cut_off: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._stall_s, self._look, cut_off)

    def _look(self, cut_off: Callable[[], object]) -> None:
        """Cut off a client whose buffer has been full for too long."""
        since_s = self._sending_since_s
        if since_s is None or asyncio.get_running_loop().time() - since_s < self._stall_s:
            self._look_later(cut_off)
        else:
            self._stream.stalled += 1
            cut_off()
