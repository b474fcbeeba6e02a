"""Long work on the event loop gives the other work there its turns."""

import asyncio
import time

_SLICE_S = 0.004


class Turns:
    """Gives the event loop's other work its turns."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    @property
    def since_s(self) -> float:
        return time.perf_counter() - self._began_s

    async def give(self, after_s: float = _SLICE_S) -> None:
        """Let others run, if this turn has lasted so long."""
        if self.since_s >= after_s:
            await asyncio.sleep(0)
            self._began_s = time.perf_counter()
