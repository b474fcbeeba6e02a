"""What a process uses while something else goes on: CPU seconds, memory, and how that grows."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

_SAMPLE_S = 0.5
_HOUR_S = 3600.0
_MIN_JUDGED_S = 300.0
_WINDOW_S = 60.0


@dataclass(kw_only=True)
class Usage:
    """Samples of one process: Unix seconds, CPU seconds used so far, and resident bytes."""

    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    @property
    def cores(self) -> float:
        """CPU seconds a second."""
        if len(self.times_s) < 2:
            return 0.0
        return (self.cpu_s[-1] - self.cpu_s[0]) / (self.times_s[-1] - self.times_s[0])

    @property
    def last_bytes(self) -> int:
        return self.bytes[-1] if self.bytes else 0

    def growth_bytes_per_hour(self, *, after_s: float) -> float | None:
        """Slope of memory over what comes so long after the first sample, by least squares; None
        if that is next to nothing.

        Of each window the least counts: what is taken for a moment and given back is no growth.
        """
        first = next((n for n, at in enumerate(self.times_s) if at > self.times_s[0] + after_s), 0)
        if not first or self.times_s[-1] - self.times_s[first] < _MIN_JUDGED_S:
            return None
        least: dict[int, int] = {}
        for at_s, resident in zip(self.times_s[first:], self.bytes[first:], strict=True):
            window = int((at_s - self.times_s[first]) // _WINDOW_S)
            least[window] = min(resident, least.get(window, resident))
        return slope([_WINDOW_S * window for window in least], [*least.values()]) * _HOUR_S

    def sample(self, process: psutil.Process) -> None:
        with process.oneshot():
            cpu, memory = process.cpu_times(), process.memory_info()
        self.times_s.append(time.time())
        self.cpu_s.append(cpu.user + cpu.system)
        self.bytes.append(memory.rss)


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return how much a value grows a second; 0 for fewer than two samples."""
    if len(times_s) < 2:
        return 0.0
    return float(np.polyfit(np.subtract(times_s, times_s[0]), values, 1)[0])


@contextlib.contextmanager
def watch_process(pid: int, *, skip_s: float = 0.0) -> Iterator[Usage]:
    """Sample a process in the block, its first seconds apart."""
    usage, process, ended = Usage(), psutil.Process(pid), threading.Event()

    def watch() -> None:
        ended.wait(skip_s)
        with contextlib.suppress(psutil.NoSuchProcess):
            while not ended.wait(_SAMPLE_S):
                usage.sample(process)

    thread = threading.Thread(target=watch, name="usage", daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        ended.set()
        thread.join()
