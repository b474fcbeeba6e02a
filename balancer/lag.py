"""How late the event loop is: the longest that a request waits before anything looks at it."""

import asyncio
import time

from libra.balancer.histogram import Histogram

_INTERVAL_S = 0.1


class LoopLag:
    """Watch how much later than asked for the loop wakes a sleeper.

    Args:
        histogram: takes every lag, in seconds.

    Attributes:
        longest_s: the longest so far.
    """

    def __init__(self, histogram: Histogram) -> None:
        self.longest_s = 0.0
        self._histogram = histogram

    def observe(self, lag_s: float) -> None:
        """Count one lag; a clock that is a little early is none."""
        lag_s = max(0.0, lag_s)
        self._histogram.observe(lag_s)
        self.longest_s = max(self.longest_s, lag_s)

    async def watch(self) -> None:
        """Observe for ever."""
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(_INTERVAL_S)
            self.observe(time.perf_counter() - begin - _INTERVAL_S)
