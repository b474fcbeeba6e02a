"""Live events of one job for any number of pages, each encoded once.

There is one ring of encoded server-sent events per job, and a client is no more than a place
in it: a new one, one that comes back with ``Last-Event-ID`` and one that reads too slowly all
read on from their place. Who has fallen out of the ring gets ``resync`` and fetches anew. So a
stuck client costs no memory, and nobody waits for it.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import msgspec

from libra.balancer.waiters import Waiters, Waker

_HEARTBEAT = b": still here\n\n"
# Pages that lost a balancer come back spread over these milliseconds, not all at once.
_RETRY_MS = (2000, 6000)
# Frames handed over at once: few, so that a slow client's place stays true.
_CHUNK = 16
# What belongs to one step is told together, and nobody looks more often than this.
_GATHER_S = 0.02
_ROUND_S = 0.1
# When the event loop lags, rounds are this many lags apart, up to the longest.
_LAGS = 10.0
_LONGEST_ROUND_S = 2.0


class EventStream:
    """Publish events and let clients follow them.

    Attributes:
        clients: how many follow now.
        resyncs: how often a client was behind the ring.
        stalled: how many were cut off since they did not read.
    """

    def __init__(
        self,
        *,
        first_id: int,
        max_events: int = 1000,
        max_bytes: int = 1 << 20,
        heartbeat_s: float = 15.0,
        waker: Waker | None = None,
    ) -> None:
        self.clients = 0
        self.resyncs = 0
        self.stalled = 0
        self._next_id = first_id
        self._frames: deque[bytes] = deque()
        self._num_bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._heartbeat_s = heartbeat_s
        self._waiters = Waiters(waker or Waker())
        # What most clients are sent: all stand at the same place, as a rule.
        self._shared: tuple[int, int, int, bytes] | None = None
        self._round: asyncio.TimerHandle | None = None
        self._next_round_s = 0.0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        """Append one event; ``data`` must be JSON-ready."""
        frame = _frame(self._next_id, kind, msgspec.json.encode(data))
        self._next_id += 1
        self._frames.append(frame)
        self._num_bytes += len(frame)
        while len(self._frames) > self._max_events or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._frames.popleft())
        self._tell_soon()

    def close(self) -> None:
        """End every client's stream."""
        self._closed = True
        if self._round is not None:
            self._round.cancel()
        self._waiters.wake()

    async def follow(self, last_id: int | None) -> AsyncIterator[bytes]:
        """Yield encoded events after ``last_id``, or from now on; heartbeats in between."""
        place = self._next_id - 1 if last_id is None else last_id
        self.clients += 1
        try:
            yield b"retry: %d\n\n" % random.randint(*_RETRY_MS)
            while not self._closed:
                place, body = self._after(place)
                if body:
                    yield body
                elif not await self._waiters.wait(self._heartbeat_s):
                    yield _HEARTBEAT
        finally:
            self.clients -= 1

    def page(self, last_id: int) -> bytes:
        """Return the events after ``last_id`` in JSON, for clients that ask now and then.

        ``next`` is the number to ask with again, at once as long as events came; ``resync`` is
        true, and there are none, where ``last_id`` is outside the ring.
        """
        frames = self._frames_after(last_id)
        resync = frames is None
        self.resyncs += resync
        newest = self._next_id - 1 if frames is None else last_id + len(frames)
        events = b",".join(_event(frame) for frame in frames or ())
        return b'{"events":[%b],"next":%d,"resync":%b}' % (
            events,
            newest,
            b"true" if resync else b"false",
        )

    def _after(self, place: int) -> tuple[int, bytes]:
        newest = self._next_id - 1
        if place == newest:
            return place, b""
        if self._shared is not None and self._shared[:2] == (place, newest):
            return self._shared[2:]
        frames = self._frames_after(place)
        if frames is None:
            self.resyncs += 1
            return newest, _frame(newest, "resync", b"{}")
        self._shared = (place, newest, place + len(frames), b"".join(frames))
        return self._shared[2:]

    def _frames_after(self, place: int) -> list[bytes] | None:
        """Return the next few frames; None for a place outside the ring."""
        passed = self._next_id - 1 - place
        if not 0 <= passed <= len(self._frames):
            return None
        begin = len(self._frames) - passed
        return list(islice(self._frames, begin, begin + _CHUNK))

    def _tell_soon(self) -> None:
        if self._round is None and self.clients and not self._closed:
            loop = asyncio.get_running_loop()
            at_s = max(loop.time() + _GATHER_S, self._next_round_s)
            self._round = loop.call_at(at_s, self._tell, at_s)

    def _tell(self, due_s: float) -> None:
        self._round = None
        now_s = asyncio.get_running_loop().time()
        pause_s = min(_LONGEST_ROUND_S, max(_ROUND_S, _LAGS * (now_s - due_s)))
        self._next_round_s = now_s + pause_s
        self._waiters.wake()


def _frame(event_id: int, kind: str, data: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, kind.encode(), data)


def _event(frame: bytes) -> bytes:
    number, kind, data = frame.rstrip(b"\n").split(b"\n")
    return b'{"id":%b,"event":"%b","data":%b}' % (
        number.removeprefix(b"id: "),
        kind.removeprefix(b"event: "),
        data.removeprefix(b"data: "),
    )
