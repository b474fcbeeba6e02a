"""A TCP proxy on loopback that does to HTTP requests what networks do: late, lost, twice, torn.

Each request draws its fault from a seed. Requests are framed by their Content-Length, as agents,
pages and the command line send them; answers pass as they come, so streams do too.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from tests.fault_link import Link

Fault = Literal[
    "delay",
    "drop",
    "half_open",
    "reset",
    "duplicate",
    "reorder",
    "truncate",
    "slow_loris",
    "corrupt",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultSettings:
    """How long faults last.

    Attributes:
        delay_s: the longest that a request or an answer is held back.
        reorder_s: the longest that a request waits for a later one to overtake it.
        trickle_s: between two bytes of a slow-loris.
        trickle_bytes: those that trickle; the rest follows at once.
    """

    delay_s: float = 0.3
    reorder_s: float = 0.3
    trickle_s: float = 0.002
    trickle_bytes: int = 100


class FaultProxy:
    """Listen on ``url`` in a thread of its own and forward to ``upstream``, a port on loopback.

    Args:
        weights: chance of each fault for a request; what is missing to 1 is none. It may be
            replaced at any time, and so may ``upstream``.
        seed: of what is drawn.

    Attributes:
        fired: how often each fault was done.
        links: connections that are open.
    """

    def __init__(
        self,
        upstream: int,
        *,
        weights: Mapping[Fault, float] | None = None,
        seed: int = 0,
        settings: FaultSettings | None = None,
    ) -> None:
        self.upstream = upstream
        self.weights: Mapping[Fault, float] = weights or {}
        self.settings = settings or FaultSettings()
        self.fired: Counter[Fault] = Counter()
        self.links: set[Link] = set()
        self.random = random.Random(seed)
        self.port = 0
        self._overtaken = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="fault-proxy", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def cut(self) -> None:
        """Reset every open connection, as a router does that restarts."""

        def reset_all() -> None:
            for link in list(self.links):
                link.reset()

        self._loop.call_soon_threadsafe(reset_all)

    def draw(self) -> Fault | None:
        """Return the next request's fault."""
        place = self.random.random()
        for fault, weight in self.weights.items():
            place -= weight
            if place < 0:
                return fault
        return None

    async def overtaken(self) -> bool:
        """Wait until a later request has gone by; tell whether one has."""
        try:
            async with asyncio.timeout(self.settings.reorder_s):
                await self._overtaken.wait()
        except TimeoutError:
            return False
        return True

    def gone_by(self) -> None:
        """Say that a request was forwarded: those held back may follow."""
        self._overtaken.set()
        self._overtaken = asyncio.Event()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._stop.wait()
            for link in list(self.links):
                link.reset()
            tasks = [link.task for link in self.links if link.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, reader, writer)
        link.task = asyncio.current_task()
        self.links.add(link)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await link.run()
        finally:
            self.links.discard(link)
            link.close()
