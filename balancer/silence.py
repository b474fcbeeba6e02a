"""Which ranks are not heard of any more, so that the others' steps need not wait for them.

An agent that died, or whose every report is refused, must not blind the balancer to the rest.

Shapes: W ranks, n of them.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# A silent rank has missed so many rounds of reports, however many steps each of them tells of,
_ROUNDS = 6
# and is so many steps behind the typical rank.
_STEPS = 16
# One that is so many steps ahead tells of no step that the others know; a report holds fewer.
_ASTRAY_STEPS = 2048
# Where more ranks are silent than this share, steps wait: too little of the job is seen. Of three
# ranks one may be: it is a third, and would blind the balancer by itself. Of two it is half.
_MAX_SHARE = 0.25
_MIN_HEARD = 2


def is_enough(known: int, ranks: int) -> bool:
    """Do so many of the ranks speak for all? All but a quarter do, and two of three."""
    return known == ranks or known >= max(_MIN_HEARD, min((1 - _MAX_SHARE) * ranks, ranks - 1))


class Hearing(msgspec.Struct, eq=False, kw_only=True):
    """When each rank last reported: [W] counts of all reports so far, and [W] the
    last steps told of."""

    heard: Float64
    newest: Float64
    reports: int = 0

    @classmethod
    def empty(cls, world_size: int) -> "Hearing":
        return cls(heard=np.zeros(world_size), newest=np.full(world_size, -1.0))

    def hear(self, ranks: Sequence[int], step: int) -> None:
        """Note that n different ranks reported a step, one after the other."""
        before, self.reports = self.reports, self.reports + len(ranks)
        self.heard[ranks] = np.arange(before + 1, self.reports + 1)
        self.newest[ranks] = step

    def may_miss(self, known: int) -> bool:
        """Could a step that ``known`` ranks have reported do without the others?"""
        return known >= _MIN_HEARD and is_enough(known, len(self.heard))

    def silent(self, at_least: int = 1) -> set[int]:
        """Return the silent ranks, or none at all where they are certainly fewer than that."""
        late = self.reports - self.heard > _ROUNDS * len(self.heard)
        # Asked for every report that may complete a step, and a median takes long.
        suspect = late | (self.newest > self.newest.min() + _ASTRAY_STEPS)
        if np.count_nonzero(suspect) < at_least:
            return set()
        middle = np.median(self.newest)
        behind, astray = self.newest <= middle - _STEPS, self.newest > middle + _ASTRAY_STEPS
        return set(np.flatnonzero((late & behind) | astray).tolist())
