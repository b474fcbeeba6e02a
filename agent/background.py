"""Run coroutines beside the training loop: one daemon thread with an event loop of its own."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

Job = Callable[[], Coroutine[Any, Any, None]]


class Background:
    """Run endless ``jobs`` on a daemon thread until stopped, then ``last``.

    An exception of a job ends that job alone and is logged. After a fork the child has no such
    thread and must not touch this object, whose poller it would share with the parent.

    Args:
        jobs: each is called once and runs until it is cancelled.
        last: runs after the jobs are cancelled, for at most ``last_timeout_s``.
        last_timeout_s: bound of ``last``.
    """

    def __init__(
        self, *jobs: Job, last: Callable[[], Awaitable[None]], last_timeout_s: float = 1.0
    ) -> None:
        self._jobs = jobs
        self._last = last
        self._last_timeout_s = last_timeout_s
        self._loop: _Loop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="libra-agent", daemon=True)

    def start(self) -> None:
        """Start the thread; raise ``RuntimeError`` where the system allows no more."""
        self._loop = _Loop()
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def stop(self, timeout_s: float) -> bool:
        """End the thread, waiting at most ``timeout_s``; return whether it has ended."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        tasks = [asyncio.create_task(_guarded(job)) for job in self._jobs]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._last_timeout_s):
                await _guarded(self._last)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that looks names up on its own thread.

    The standard one asks a thread pool that Python joins at exit, so a resolver that hangs
    would hold up the end of the training process. Blocking this loop delays only the agent.
    """

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        return socket.getaddrinfo(*args, **kwargs)


async def _guarded(job: Callable[[], Awaitable[None]]) -> None:
    try:
        await job()
    except Exception:
        logger.exception("A part of the agent failed and is off from now on.")
