"""Which reports of an agent were folded in already, in a bounded number of words."""

import msgspec

_WINDOW = 256


class AgentState(msgspec.Struct, kw_only=True, gc=False):
    """One agent process.

    Attributes:
        floor: every sequence number up to here was folded in or given up.
        ahead: those above it that were folded in, at most a window of them; a tuple, since there
            are none as a rule, and thousands of empty sets are work for every collection.
        dropped, set_aside: the agent's own counts of what it lost, and of calls that it kept out.
    """

    floor: int = -1
    ahead: tuple[int, ...] = ()
    dropped: int = 0
    set_aside: int = 0

    def has(self, sequence: int) -> bool:
        return sequence <= self.floor or sequence in self.ahead

    def add(self, sequence: int) -> None:
        """Remember a number; the oldest gap is given up when too many wait behind it."""
        if sequence == self.floor + 1 and not self.ahead:
            self.floor = sequence
            return
        ahead = {*self.ahead, sequence}
        if len(ahead) > _WINDOW:
            self.floor = min(ahead) - 1
        while self.floor + 1 in ahead:
            self.floor += 1
            ahead.remove(self.floor)
        self.ahead = tuple(ahead)
