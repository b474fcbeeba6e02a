"""How far nodes' clocks lie from the balancer's, by when their reports were sent and came.

Pure. A report cannot come before it was sent, so the least of (arrival - sent) over a while is the
clock's offset and the quickest way there. It is shown and decides nothing.
"""

import math

import msgspec

WINDOW_S = 60.0
# From one window to the next the quickest way varies by less.
JUMP_S = 1.0


class NodeClock(msgspec.Struct, kw_only=True, gc=False):
    """One node: the least offset of this window, and of the one before it."""

    began_s: float
    now_s: float
    before_s: float = math.inf

    @property
    def offset_s(self) -> float:
        return min(self.now_s, self.before_s)


class NodeClocks(msgspec.Struct, kw_only=True):
    """All nodes' clocks; ``jumps`` counts clocks that were set while they were watched."""

    nodes: dict[str, NodeClock] = {}
    jumps: int = 0

    def note(self, node: str, *, sent_s: float, arrived_s: float, max_nodes: int) -> None:
        """Note a report's way; the node first heard of is forgotten beyond ``max_nodes``."""
        offset_s = arrived_s - sent_s
        clock = self.nodes.get(node)
        if clock is None:
            self.nodes[node] = NodeClock(began_s=arrived_s, now_s=offset_s)
            if len(self.nodes) > max_nodes:
                del self.nodes[next(iter(self.nodes))]
        elif arrived_s - clock.began_s < WINDOW_S:
            clock.now_s = min(clock.now_s, offset_s)
        else:
            if math.isfinite(clock.before_s) and abs(clock.now_s - clock.before_s) > JUMP_S:
                self.jumps += 1
            clock.began_s, clock.before_s, clock.now_s = arrived_s, clock.now_s, offset_s

    @property
    def range_s(self) -> tuple[float, float] | None:
        """Return the least and the largest offset of any node; None where nobody tells."""
        offsets = [clock.offset_s for clock in self.nodes.values()]
        return (min(offsets), max(offsets)) if offsets else None
