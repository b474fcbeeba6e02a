"""Kernels of a device that runs behind its host are timed by its own clock, and nobody waits."""

import sys
from dataclasses import dataclass, replace
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from libra.agent import unread
from libra.agent.device_clock import CudaClock, device_clock
from libra.agent.meter import StepMeter
from libra.attention.observer import Traffic
from libra.balancer.wire import StepTotals
from tests.layouts import two_sequence_layout
from tests.test_meter import FORWARD

KERNEL = replace(FORWARD, device="cuda")
WORK = (1, 2, 3, 4, 5, 6)
WAVE = Traffic(device="cuda", backend="nccl", messages=1, sent_bytes=9, busier_bytes=9)


@dataclass(eq=False)
class Stamp:
    """A mark in the stream; ``at_s`` once the device came by."""

    at_s: float | None = None


class Device:
    """A stream of marks and work that runs when it is told to; also the clock that reads it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.capturing = False
        self.reused = 0
        self._stream: list[Stamp | float] = []

    def work(self, seconds: float) -> None:
        self._stream.append(seconds)

    def run(self, items: int = 1 << 30) -> None:
        for item in self._stream[:items]:
            if isinstance(item, Stamp):
                item.at_s = self.now_s
            else:
                self.now_s += item
        del self._stream[:items]

    def mark(self) -> Stamp | None:
        if self.capturing:
            return None
        self._stream.append(Stamp())
        return self._stream[-1]  # type: ignore[return-value]

    def passed(self, mark: Stamp) -> bool:
        return mark.at_s is not None

    def seconds(self, begin: Stamp, end: Stamp) -> float:
        assert begin.at_s is not None, "read before it was there"
        assert end.at_s is not None, "read before it was there"
        return end.at_s - begin.at_s

    def reuse(self, *marks: Stamp) -> None:
        self.reused += len(marks)


class Watched:
    """A meter of a device, past the first step, which tells it what it watches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.told = Device(), list[StepTotals]()
        monkeypatch.setattr("libra.agent.meter.device_clock", lambda _: self.device)
        self.meter = StepMeter(sink=self.told.append)
        self.begin(0)
        self.call(1.0)
        self.device.run()
        self.meter.end_step(1.0)

    def begin(self, step: int) -> None:
        self.meter.begin(two_sequence_layout(step=step))

    def call(self, seconds: float) -> None:
        mark = self.meter.start()
        self.device.work(seconds)
        self.meter.kernel(mark, KERNEL, WORK)

    def wave(self, before_s: float, wait_s: float) -> None:
        issued = self.meter.start()
        self.device.work(before_s)
        mark = self.meter.start()
        self.device.work(wait_s)
        self.meter.exchange(issued, mark, WAVE)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_step_is_told_when_its_device_has_come_by(watched: Watched) -> None:
    """The host ends the step at once; its seconds are the device's, and steps keep their order."""
    for step, seconds in ((1, 0.25), (2, 0.5)):
        watched.begin(step)
        watched.call(seconds)
        watched.call(seconds)
        assert watched.meter.end_step(3.0) is None
    assert watched.told == []

    watched.device.run(7)
    watched.meter.settle()
    assert [one.step for one in watched.told] == [1]
    watched.device.run()
    watched.begin(3)
    assert [(one.step, one.kernels[0].seconds) for one in watched.told] == [(1, 0.5), (2, 1.0)]
    assert watched.told[0].kernels[0].features == tuple(2.0 * value for value in WORK)
    assert watched.told[0].seconds == 3.0
    assert watched.meter.kernel_wall_seconds == 1.0


def test_what_is_there_is_told_at_once(watched: Watched) -> None:
    """Where the loop waits for its device anyway, ``end_step`` returns the totals as ever."""
    watched.begin(1)
    watched.call(0.25)
    watched.device.run()
    totals = watched.meter.end_step()
    assert totals is not None
    assert totals.kernels[0].seconds == 0.25
    assert watched.told == [totals]
    assert watched.device.reused == 2


def test_the_exposed_wait_is_the_devices(watched: Watched) -> None:
    """A wave takes from its begin to its end, and what it was waited for is the last part of it."""
    watched.begin(1)
    for _ in range(32):
        watched.wave(0.5, 0.25)
    watched.device.run()
    totals = watched.meter.end_step()
    (waves,) = watched.meter.take_waves()
    assert totals is not None
    assert totals.wait_seconds == 32 * 0.25
    assert totals.sent_bytes == 32 * 9
    # Half of the batch is kept; moments begin with the count and the sum of seconds.
    assert waves.sums[1] / waves.sums[0] == 0.75


def test_a_call_that_was_not_timed_leaves_its_step_out(watched: Watched) -> None:
    """The first call of all, and what is captured in a graph, are counted; the rest goes on."""
    assert watched.told == []
    assert watched.meter.dropped == 1
    watched.begin(1)
    watched.device.capturing = True
    watched.call(1.0)
    watched.device.capturing = False
    watched.call(1.0)
    watched.device.run()
    watched.begin(2)
    watched.call(1.0)
    watched.device.run()
    watched.meter.end_step()
    assert [one.step for one in watched.told] == [2]
    assert watched.meter.dropped == 2
    assert not watched.meter.failed


def test_a_device_that_stands_still_costs_bounded_memory(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings and steps beyond a bound are left out and counted, and all is well later."""
    monkeypatch.setattr(unread, "MAX_UNREAD", 5)
    monkeypatch.setattr(unread, "MAX_CLOSED", 3)
    for step in range(1, 11):
        watched.begin(step)
        watched.call(1.0)
        watched.meter.end_step(1.0)
    assert watched.meter._unread is not None
    assert len(watched.meter._unread) == 5
    # The first of all, five readings, and the five steps that waited for the others.
    assert watched.meter.dropped == 1 + 5 + 5
    watched.device.run()
    watched.begin(11)
    watched.call(1.0)
    watched.device.run()
    watched.meter.end_step()
    assert watched.told[-1].step == 11


class Event:
    """What is used of ``torch.cuda.Event``, as it is documented; to wait is a failure."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        assert enable_timing, "without it no time can be read"
        self.recorded = 0

    def record(self, stream: Any = None) -> None:
        assert stream is None, "the current stream is where kernels are queued"
        self.recorded += 1

    def query(self) -> bool:
        return self.recorded > 0

    def elapsed_time(self, end_event: "Event") -> float:
        return 1500.0

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the device")

    wait = synchronize


def test_events_are_asked_as_they_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are recorded in the current stream, read in milliseconds, and used again."""
    cuda = SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    clock = CudaClock()
    begin, end = clock.mark(), clock.mark()
    assert clock.passed(end)
    assert clock.seconds(begin, end) == 1.5
    clock.reuse(begin, end)
    assert {id(clock.mark()), id(clock.mark())} == {id(begin), id(end)}
    cuda.is_current_stream_capturing = lambda: True
    assert clock.mark() is None


def test_devices_without_such_events_have_no_clock() -> None:
    """What cannot be timed is not timed by something else."""
    assert device_clock("xpu") is None
    assert isinstance(device_clock("cuda"), CudaClock)
    assert "enable_timing" in signature(torch.cuda.Event.__new__).parameters
    for name in ("record", "query", "elapsed_time"):
        theirs, ours = (signature(getattr(one, name)) for one in (torch.cuda.Event, Event))
        assert list(theirs.parameters) == list(ours.parameters), name


@pytest.mark.gpu
def test_a_real_device_is_timed_and_not_waited_for() -> None:
    """Seconds of a matrix product are those between events that are waited for, within a fifth."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    told: list[StepTotals] = []
    meter = StepMeter(sink=told.append)
    for step in range(6):
        meter.begin(two_sequence_layout(step=step))
        mark = meter.start()
        torch.mm(matrix, matrix)
        meter.kernel(mark, KERNEL, WORK)
        meter.end_step()
    torch.cuda.synchronize()
    meter.settle()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.mm(matrix, matrix)
    end.record()
    end.synchronize()
    assert [one.step for one in told] == list(range(1, 6))
    expected_s = 1e-3 * begin.elapsed_time(end)
    assert told[-1].kernels[0].seconds == pytest.approx(expected_s, rel=0.2)
