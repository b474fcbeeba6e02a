"""Megatron-LM's grouping under dynamic context parallelism, from its pull requests' description.

Source: NVIDIA/Megatron-LM pull requests 2054 and 2282. Each sample gets as many ranks as its length
needs, a power of two, and the ranks take samples in rounds that end when all are about equally
loaded. Samples are split over ranks, so this changes CP sizes where Libra moves tiles; ranks meet
after every round.

Shapes: R ranks of the DP x CP grid.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# A round ends when the idlest rank has this share of the busiest one's load.
_BALANCED = 0.95


@dataclass(kw_only=True)
class CpGroup:
    """Ranks that share samples in one round.

    Attributes:
        size: its ranks, a power of two.
        samples: indices, in the order in which they came.
        work: of all samples; each rank carries ``work / size``.
    """

    size: int
    samples: list[int] = field(default_factory=list)
    work: float = 0.0

    @property
    def load(self) -> float:
        return self.work / self.size


def ranks_needed(length: int, tokens_per_rank: int) -> int:
    """Return the smallest power of two of ranks that hold a sample."""
    return 1 << (-(-length // tokens_per_rank) - 1).bit_length()


def group_rounds(
    lengths: Sequence[int], work: Sequence[float], ranks: int, tokens_per_rank: int
) -> list[list[CpGroup]]:
    """Return rounds of groups that hold every sample once.

    Args:
        lengths: of each sample, in tokens.
        work: of each sample; R ranks that share it carry 1 / R each.
        ranks: R.
        tokens_per_rank: the most that a rank holds of one sample.

    Raises:
        ValueError: a sample needs more ranks than there are.
    """
    needed = [ranks_needed(length, tokens_per_rank) for length in lengths]
    if needed and max(needed) > ranks:
        raise ValueError(
            f"length={max(lengths)}: needs {max(needed)} of {ranks} ranks; raise tokens_per_rank"
        )
    waiting: dict[int, deque[int]] = {}
    for own in sorted(range(len(lengths)), key=lambda own: (-lengths[own], own)):
        waiting.setdefault(needed[own], deque()).append(own)
    rounds = []
    while any(waiting.values()):
        groups = _fill(waiting, work, ranks)
        for own in reversed(_trim(groups, work, ranks)):
            waiting[needed[own]].appendleft(own)
        _widen(groups, ranks)
        rounds.append(groups)
    return rounds


def rank_loads(rounds: list[list[CpGroup]], ranks: int) -> Float64:
    """Return [rounds, R] load of each rank in each round, wide groups on the first ranks."""
    loads = np.zeros((len(rounds), ranks))
    for row, groups in zip(loads, rounds, strict=True):
        ordered = sorted(groups, key=lambda own: -own.size)
        each = np.repeat([own.load for own in ordered], [own.size for own in ordered])
        row[: len(each)] = each
    return loads


def _fill(waiting: dict[int, deque[int]], work: Sequence[float], ranks: int) -> list[CpGroup]:
    """Take the longest samples that have a place until ranks are equally loaded."""
    groups: list[CpGroup] = []
    lightest: dict[int, list[tuple[float, int]]] = {}
    free, busiest, first = ranks, 0.0, 0
    for size in sorted(waiting, reverse=True):
        own = lightest.setdefault(size, [])
        while waiting[size] and (own or free >= size):
            sample = waiting[size].popleft()
            if free >= size:
                free -= size
                groups.append(CpGroup(size=size))
                index = len(groups) - 1
            else:
                _, index = heapq.heappop(own)
            groups[index].samples.append(sample)
            groups[index].work += work[sample]
            heapq.heappush(own, (groups[index].load, index))
            busiest, first = max(busiest, groups[index].load), first or size
            idlest = min(heap[0][0] for heap in lightest.values() if heap)
            if size < first and not free and idlest >= _BALANCED * busiest:
                return groups
    return groups


def _trim(groups: list[CpGroup], work: Sequence[float], ranks: int) -> list[int]:
    """Take the newest sample from the busiest group while that evens loads; return all taken."""
    taken: list[int] = []
    if sum(own.size for own in groups) < ranks:
        return taken  # free ranks are filled by widening groups
    while True:
        heavy = max(groups, key=lambda own: own.load)
        idlest = min(own.load for own in groups)
        if len(heavy.samples) < 2 or idlest >= _BALANCED * heavy.load:
            return taken
        others = [own.load for own in groups if own is not heavy]
        left = heavy.load - work[heavy.samples[-1]] / heavy.size
        if max(left, *others, 0.0) - min(left, idlest) >= heavy.load - idlest:
            return taken
        heavy.work -= work[heavy.samples[-1]]
        taken.append(heavy.samples.pop())


def _widen(groups: list[CpGroup], ranks: int) -> None:
    """Double the busiest of the smallest groups while free ranks allow it."""
    free = ranks - sum(own.size for own in groups)
    while groups:
        own = min(groups, key=lambda group: (group.size, -group.load))
        if own.size > free:
            return
        free -= own.size
        own.size *= 2
