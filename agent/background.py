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
MAX_LOOKUPS = 4


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
    """An event loop that looks names up on daemon threads, which nobody waits for at the end.

    The standard one asks a thread pool that Python joins at exit, so a resolver that hangs would
    hold up the end of the training process. A name that is being looked up is not asked for again,
    and of different ones there are ``MAX_LOOKUPS`` at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[str, asyncio.Future[Any]] = {}

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        name = repr((args, kwargs))
        found = self._lookups.get(name)
        if found is None:
            if len(self._lookups) >= MAX_LOOKUPS:
                raise OSError(f"{MAX_LOOKUPS} names are being looked up without an answer")
            found = self._lookups[name] = self.create_future()
            found.add_done_callback(lambda _: self._lookups.pop(name))
            threading.Thread(
                target=self._look_up, args=(found, args, kwargs), name="libra-name", daemon=True
            ).start()
        # Whoever gives up leaves the answer to the next that asks.
        return await asyncio.shield(found)

    def _look_up(self, found: "asyncio.Future[Any]", args: Any, kwargs: Any) -> None:
        def tell(addresses: Any, error: OSError | None) -> None:
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)
                found.exception()  # whoever asked may be gone

        outcome: tuple[Any, OSError | None]
        try:
            outcome = socket.getaddrinfo(*args, **kwargs), None
        except OSError as error:
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            self.call_soon_threadsafe(tell, *outcome)


async def _guarded(job: Callable[[], Awaitable[None]]) -> None:
    try:
        await job()
    except Exception:
        logger.exception("A part of the agent failed and is off from now on.")
