"""Make sure that a plane's ranks have made the same plan before any tile travels.

Ranks whose plans differ would send rows that nobody expects, and abort. So they compare a digest
of what their plans were made from, by a small reduction that is begun when a batch is known
and awaited when it is attended to: all see the same verdict and take the same branch.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from libra.attention.failure import exchanging
from libra.attention.layout import BatchLayout

# Micro-batches in flight at a time; a pipeline has tens.
_MAX_KNOWN = 64


@dataclass(slots=True)
class _Verdict:
    """A comparison: under way while ``work`` is there, else decided."""

    layout: BatchLayout
    extremes: Tensor
    work: Any
    agreed: bool = True


class PlanAgreement:
    """Compares layouts within a group, each once.

    Every rank of the group must bring the same layouts in the same order; a rank whose own plan
    moves nothing takes part too, since it cannot know that the others' do not.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._known: OrderedDict[tuple[int, bool], _Verdict] = OrderedDict()

    def prepare(self, layout: BatchLayout, *, home: bool) -> None:
        """Begin to compare a layout, and whether all run it at home; never waits."""
        key = (id(layout), home)
        if key in self._known:
            return
        digest = layout.digest ^ int(home)
        # The smallest is the negated largest of the negated: one reduction for both.
        extremes = torch.tensor([digest, -digest], dtype=torch.int64)
        with exchanging():
            work = dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._group, async_op=True)
        # The layout is kept so that no other object can take its identity.
        self._known[key] = _Verdict(layout, extremes, work)
        while len(self._known) > _MAX_KNOWN:
            _, oldest = self._known.popitem(last=False)
            _decide(oldest)

    def agreed(self, layout: BatchLayout, *, home: bool) -> tuple[bool, bool]:
        """Return whether all ranks have the same plan, and whether this call is first to know."""
        self.prepare(layout, home=home)
        verdict = self._known[id(layout), home]
        first = verdict.work is not None
        _decide(verdict)
        return verdict.agreed, first


def _decide(verdict: _Verdict) -> None:
    work, verdict.work = verdict.work, None
    if work is not None:
        with exchanging():
            work.wait()
        verdict.agreed = int(verdict.extremes[0]) == -int(verdict.extremes[1])
