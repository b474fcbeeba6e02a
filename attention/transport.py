"""What a pool's exchanges need beside the plan: a group, buffers, an observer, and who failed.

Shapes: a wave's parcels in flat buffers; D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import Tensor

from libra.attention.exchange import Exchange, Packing, Side
from libra.attention.failure import RollCall
from libra.attention.lowering import Wave
from libra.attention.observer import Observer
from libra.attention.workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """How one rank's tiles travel.

    Attributes:
        group: the ranks that exchange tiles, in the order of the plan's bins.
        workspace: where buffers come from that are not kept until backward.
        resend: send inputs again in backward instead of keeping them.
        observer: told of every wait.
        roll_call: finds out which rank failed.
    """

    group: dist.ProcessGroup
    workspace: Workspace
    resend: bool
    observer: Observer | None
    roll_call: RollCall

    def dispatch(
        self, wave: Wave, sides: Sequence[Side], tensors: Sequence[Tensor], *, kept: bool = False
    ) -> Exchange:
        """Send rows of tensors at home to where their tiles are computed."""
        like, dim = tensors[0], tensors[0].shape[2]
        sent, received = (Packing(own, sides, dim) for own in (wave.sent, wave.received))
        outgoing = self.take(sent.elements, like)
        sent.gather(outgoing, tensors)
        make = like.new_empty if kept else partial(self.take, like=like)
        incoming = make(received.elements)
        return self._begin(outgoing, incoming, sent, received)

    def give_back(
        self, wave: Wave, sides: Sequence[Side], results: Tensor, head_dim: int
    ) -> Exchange:
        """Send results of received tiles back to their homes, and receive those of one's own."""
        sent, received = (Packing(own, sides, head_dim) for own in (wave.received, wave.sent))
        incoming = self.take(received.elements, results)
        return self._begin(results, incoming, sent, received)

    def wait(self, exchange: Exchange) -> None:
        """Wait for an exchange and let the observer know for how long; again is free."""
        if exchange.done:
            return
        mark = self.observer.start() if self.observer else None
        exchange.wait()
        if self.observer:
            self.observer.exchange(exchange.issued, mark, exchange.traffic)

    def take(self, elements: int, like: Tensor) -> Tensor:
        return self.workspace.take(elements, like)

    def reuse(self, *buffers: Tensor) -> None:
        """Let buffers of exchanges that have ended serve others."""
        for buffer in buffers:
            self.workspace.give(buffer)

    def _begin(
        self, outgoing: Tensor, incoming: Tensor, sent: Packing, received: Packing
    ) -> Exchange:
        issued = self.observer.start() if self.observer else None
        return Exchange(outgoing, incoming, sent, received, self.group, issued)
