"""Live events of one job for any number of pages, each encoded once.

There is one ring of encoded server-sent events per job, and a client is no more than a place
in it: a new one, one that comes back with ``Last-Event-ID`` and one that reads too slowly all
read on from their place. Who has fallen out of the ring gets ``resync`` and fetches anew. So a
stuck client costs no memory, and nobody waits for it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import msgspec

_RETRY = b"retry: 3000\n\n"
_HEARTBEAT = b": still here\n\n"
# Frames handed over at once: few, so that a slow client's place stays true.
_CHUNK = 16


class EventStream:
    """Publish events and let clients follow them.

    Attributes:
        clients: how many follow now.
        resyncs: how often a client was behind the ring.
    """

    def __init__(
        self,
        *,
        first_id: int,
        max_events: int = 1000,
        max_bytes: int = 8 << 20,
        heartbeat_s: float = 15.0,
    ) -> None:
        self.clients = 0
        self.resyncs = 0
        self._next_id = first_id
        self._frames: deque[bytes] = deque()
        self._num_bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._heartbeat_s = heartbeat_s
        self._news = asyncio.Event()
        self._closed = False

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        """Append one event; ``data`` must be JSON-ready."""
        frame = _frame(self._next_id, kind, msgspec.json.encode(data))
        self._next_id += 1
        self._frames.append(frame)
        self._num_bytes += len(frame)
        while len(self._frames) > self._max_events or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._frames.popleft())
        self._wake()

    def close(self) -> None:
        """End every client's stream."""
        self._closed = True
        self._wake()

    async def follow(self, last_id: int | None) -> AsyncIterator[bytes]:
        """Yield encoded events after ``last_id``, or from now on; heartbeats in between."""
        place = self._next_id - 1 if last_id is None else last_id
        self.clients += 1
        try:
            yield _RETRY
            while not self._closed:
                news = self._news
                place, body = self._after(place)
                if body:
                    yield body
                elif not await _rung(news, self._heartbeat_s):
                    yield _HEARTBEAT
        finally:
            self.clients -= 1

    def _after(self, place: int) -> tuple[int, bytes]:
        newest = self._next_id - 1
        passed = newest - place
        if passed == 0:
            return place, b""
        if not 0 < passed <= len(self._frames):
            self.resyncs += 1
            return newest, _frame(newest, "resync", b"{}")
        begin = len(self._frames) - passed
        frames = list(islice(self._frames, begin, begin + _CHUNK))
        return place + len(frames), b"".join(frames)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _frame(event_id: int, kind: str, data: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, kind.encode(), data)


async def _rung(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
