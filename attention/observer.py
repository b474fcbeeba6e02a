"""The timing hook: who may watch kernel calls and exchange waits, and in which words.

The operator knows no clock. It asks the observer for a mark before a kernel call and hands it
back after, so an observer may read a host clock, a thread's CPU clock or CUDA events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from libra.attention.layout import BatchLayout

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelKind:
    """What kernel calls must have in common to share one cost model."""

    device: str
    backend: str
    dtype: str
    head_dim: int
    group_heads: int
    direction: Direction


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """One rank's part of an exchanged wave.

    Attributes:
        device, backend: where the tensors lie, and the process group's backend.
        messages: peers, of the direction with more of them.
        sent_bytes: what this rank sent.
        busier_bytes: what it sent or what it received, whichever is more.
    """

    device: str
    backend: str
    messages: int
    sent_bytes: int
    busier_bytes: int


class Observer(Protocol):
    """Watch one rank's attention. No method may raise, block or synchronise a device."""

    def begin(self, layout: BatchLayout) -> None:
        """Note that the kernels that follow belong to this layout's step and micro-batch."""

    def start(self) -> Any:
        """Return a mark of now."""

    def kernel(self, mark: Any, kind: KernelKind, features: Sequence[int]) -> None:
        """Note a kernel call that began at ``mark``; features [F] are summed over its tiles."""

    def exchange(self, issued: Any, mark: Any, traffic: Traffic) -> None:
        """Note the end of an exchange begun at ``issued`` that was waited for from ``mark`` on."""

    def mismatch(self) -> None:
        """Note that the pool's ranks disagreed on a plan, so that the cell runs at home."""
