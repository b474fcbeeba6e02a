"""Token buckets: how much one sender may ask for in a while, in a table of bounded size."""

from collections import OrderedDict
from collections.abc import Hashable

MAX_SENDERS = 4096


class Buckets:
    """Buckets of one size, one for each sender; the clock is passed in.

    A bucket holds ``burst`` units and fills by ``per_s`` a second. One that is asked for more than
    it holds goes into debt, so that no single request is too large for ever. Beyond
    ``max_senders`` the one that asked longest ago is forgotten: by then it would be full, unless
    someone makes up senders.
    """

    def __init__(self, per_s: float, burst: float, max_senders: int = MAX_SENDERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._max_senders = max_senders
        # Sender: (units, as of which second).
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait_s(self, sender: Hashable, now_s: float) -> float:
        """Return the seconds until this sender may ask again; 0 is at once."""
        level = self._level(sender, now_s)
        return 0.0 if level > 0 else (1e-3 - level) / self._per_s

    def take(self, sender: Hashable, units: float, now_s: float) -> None:
        """Charge a sender."""
        self._levels[sender] = (self._level(sender, now_s) - units, now_s)
        self._levels.move_to_end(sender)
        if len(self._levels) > self._max_senders:
            self._levels.popitem(last=False)

    def _level(self, sender: Hashable, now_s: float) -> float:
        level, since_s = self._levels.get(sender, (self._burst, now_s))
        return min(self._burst, level + self._per_s * max(0.0, now_s - since_s))
