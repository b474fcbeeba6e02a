"""Readings of a device's clock that are not there yet, and the steps that wait for them.

Only the training thread calls this. Readings are taken in the order in which they were begun; one
that the device has not come by holds up those behind it, for a step at most.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from libra.agent.device_clock import DeviceClock
from libra.agent.open_step import OpenStep

# A host that runs ahead of its device by more leaves readings out, and steps untold.
MAX_UNREAD = 1 << 15
MAX_CLOSED = 64
# Steps of very many calls look now and then what has come, not only at their end.
_LOOK_EVERY = 256


@dataclass(frozen=True, slots=True)
class _Reading:
    marks: Sequence[Any]
    read: Callable[..., None]
    step: OpenStep | None


class Unread:
    """Readings between marks of a device's clock, each handed over once it is there.

    Args:
        tell: takes a closed step, and its seconds, whose readings are all there.

    Attributes:
        dropped: readings and steps that were left out for lack of room.
    """

    def __init__(self, clock: DeviceClock, tell: Callable[[OpenStep, float], object]) -> None:
        self.clock = clock
        self.dropped = 0
        self._tell = tell
        self._readings: deque[_Reading] = deque()
        self._closed: deque[tuple[OpenStep, float]] = deque()

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, step: OpenStep | None, marks: Sequence[Any], read: Callable[..., None]) -> None:
        """Read later: ``read`` gets the seconds from each of ``marks`` to the last of them.

        Where a mark is missing, or too much waits already, the reading is left out, and its step.
        """
        if len(self._readings) >= MAX_UNREAD or any(mark is None for mark in marks):
            self.dropped += 1
            if step is not None:
                step.is_whole = False
            return
        if step is not None:
            step.unread += 1
        self._readings.append(_Reading(marks, read, step))
        if len(self._readings) % _LOOK_EVERY == 0:
            self.settle()

    def close(self, step: OpenStep, seconds: float) -> bool:
        """Return whether a closed step has to wait for its readings, or for an earlier step's."""
        self.settle()
        if not step.unread and not self._closed:
            return False
        if len(self._closed) == MAX_CLOSED:
            self._closed.popleft()
            self.dropped += 1
        self._closed.append((step, seconds))
        return True

    def settle(self) -> None:
        """Hand over the readings that are there, and tell of the steps that wait for no more."""
        while self._readings and self.clock.passed(self._readings[0].marks[-1]):
            reading = self._readings.popleft()
            *begins, end = reading.marks
            reading.read(*(self.clock.seconds(begin, end) for begin in begins))
            self.clock.reuse(*reading.marks)
            if reading.step is not None:
                reading.step.unread -= 1
        while self._closed and not self._closed[0][0].unread:
            self._tell(*self._closed.popleft())
