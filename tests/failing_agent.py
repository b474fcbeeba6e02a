"""Faults in the agent's own calls on the training thread, one at a time."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from libra.agent import agent as agent_module
from libra.agent.agent import Agent
from libra.attention.observer import Traffic
from tests.layouts import two_sequence_layout
from tests.test_meter import FORWARD

_FOLDER = str(Path(agent_module.__file__).parent)
_GUARD = "guarded"


class Injection:
    """Raise at the start of one call that the agent makes of its own functions.

    Args:
        number: of the call, counted from 0.

    Attributes:
        place: the function that raised; empty if there were fewer calls.
    """

    def __init__(self, number: int) -> None:
        self.place = ""
        self._left = number

    def __enter__(self) -> "Injection":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back
        if event != "call" or self.place or caller is None or not _inner(frame, caller):
            return
        self._left -= 1
        if self._left < 0:
            self.place = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"
            raise ZeroDivisionError(self.place)


def _inner(frame: FrameType, caller: FrameType) -> bool:
    """Tell whether the agent's own code calls the agent's own code."""
    files = frame.f_code.co_filename, caller.f_code.co_filename
    within = all(file.startswith(_FOLDER) for file in files)
    return within and frame.f_code.co_name != _GUARD


class _Attention:
    observer: Any = None


class _Sampler:
    policy_source: Any = None
    pools: Any = None


def watch_a_step(agent: Agent, injection: Injection) -> None:
    """Make every call that training makes of an agent, under an injection."""
    attention, sampler = _Attention(), _Sampler()
    traffic = Traffic(device="cpu", backend="gloo", messages=1, sent_bytes=1000, busier_bytes=1000)
    layouts = [two_sequence_layout(step=step) for step in range(3)]
    with injection:
        agent.attach(attention, sampler)
        meter = agent.meter
        for layout in layouts:
            meter.begin(layout)
            for _ in range(40):
                mark = meter.start()
                meter.kernel(mark, FORWARD, (1, 2, 3, 4, 5, 6))
            issued = meter.start()
            meter.exchange(issued, meter.start(), traffic)
            meter.mismatch()
            agent.end_step()
            if sampler.policy_source is not None:
                sampler.policy_source()
            assert agent.policy.version >= 0
