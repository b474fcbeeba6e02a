"""The event loop's lag is seen where it is, and only there."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.histogram import Histogram
from libra.balancer.lag import LoopLag


@given(st.lists(st.floats(-1e-3, 10)))
def test_the_longest_lag_is_kept(lags: list[float]) -> None:
    """Every lag is counted once, and an early clock is no lag."""
    histogram = Histogram((0.1, 1.0))
    lag = LoopLag(histogram)
    for seconds in lags:
        lag.observe(seconds)

    assert sum(histogram.counts) == len(lags)
    assert histogram.total >= 0.0
    assert lag.longest_s == max([0.0, *lags])


def test_a_blocked_loop_is_noticed() -> None:
    """Work of a quarter second on the loop shows as a lag of about that."""

    async def run() -> float:
        lag = LoopLag(Histogram())
        watching = asyncio.create_task(lag.watch())
        await asyncio.sleep(0)  # it sleeps now
        time.sleep(0.35)  # what must not happen
        while not lag.longest_s:
            await asyncio.sleep(0.001)
        watching.cancel()
        return lag.longest_s

    assert asyncio.run(run()) > 0.2
