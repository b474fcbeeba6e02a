"""Those who wait for news, woken a few at a time so that thousands never hold up a report."""

import asyncio
from collections import deque
from collections.abc import Iterable

# So many are woken in one round of the event loop; what else is ready runs in between.
_SLICE = 8


class Waker:
    """Wake any number of waiting tasks in order, a slice in each round of the event loop.

    Args:
        pause_s: between slices, for those who may wait while others have more of the loop.
    """

    def __init__(self, *, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._due: deque[asyncio.Future[bool]] = deque()
        self._busy = False

    def wake(self, futures: "Iterable[asyncio.Future[bool]]") -> None:
        """Let the tasks that await these futures go on soon."""
        self._due.extend(futures)
        if self._due and not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(_SLICE, len(self._due))):
            _answer(self._due.popleft(), True)
        if self._due:
            loop = asyncio.get_running_loop()
            loop.call_later(self._pause_s, self._wake_some)
        else:
            self._busy = False


class Waiters:
    """Those who wait for one thing."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        # A dictionary keeps the order: who came first is woken first.
        self._futures: dict[asyncio.Future[bool], None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for ``wake``; False if it did not come in time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_s, _answer, future, False)
        self._futures[future] = None
        try:
            return await future
        finally:
            timer.cancel()
            self._futures.pop(future, None)

    def wake(self) -> None:
        """Wake all that wait now."""
        futures, self._futures = self._futures, {}
        self._waker.wake(futures)


def _answer(future: "asyncio.Future[bool]", woken: bool) -> None:
    if not future.done():
        future.set_result(woken)
