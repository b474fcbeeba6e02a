"""The clock of a device that runs kernels after their call has returned.

A mark is an event in the stream that kernels are queued in. The device stamps it when it comes by,
and the stamp is read when it is there: nothing waits for the device, and nothing is synchronised.
"""

import sys
from typing import Any, Protocol


class DeviceClock(Protocol):
    """What the meter asks of a device's clock; marks are this clock's own."""

    def mark(self) -> Any:
        """Return a mark at the end of the current stream; None where there can be none."""

    def passed(self, mark: Any) -> bool:
        """Has the device come by? Returns at once."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks that the device has passed."""
        ...

    def reuse(self, *marks: Any) -> None:
        """Take back marks that nobody will ask about again."""


class CudaClock:
    """Events of the current CUDA device, in its current stream."""

    def __init__(self) -> None:
        # Whoever hands over a kernel call on a CUDA device has loaded torch.
        self._cuda: Any = sys.modules["torch"].cuda
        self._free: list[Any] = []

    def mark(self) -> Any:
        # What is captured now runs later, any number of times or never.
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        return 1e-3 * float(begin.elapsed_time(end))

    def reuse(self, *marks: Any) -> None:
        self._free += marks


def device_clock(device: str) -> DeviceClock | None:
    """Return a clock for devices of a type; None for those whose events are not known."""
    return CudaClock() if device == "cuda" and "torch" in sys.modules else None
