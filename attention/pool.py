"""One pool that this rank can be in: who is in it, and the groups that its ranks exchange in."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from libra.attention.failure import RollCall


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A pool and this rank's place in it.

    A plane is the ranks of a pool with the same index in their CP groups: where heads divide
    evenly they hold, after the head split, the same heads of the pool's sequences.

    Attributes:
        place: index of this rank's sequence within the pool.
        dp_ranks: the CP groups of the pool, in the order of their places.
        plane_group: the pool's ranks with this rank's ``cp_rank``, by place.
        pool_group: all the pool's ranks, by place, then by ``cp_rank``.
        plane_agreement_group, pool_agreement_group: the same ranks on a backend for CPU tensors.
        plane_nodes, pool_nodes: index of the node of each rank of these groups.
        roll_call: finds out which rank of the pool failed.
    """

    place: int
    dp_ranks: range
    plane_group: dist.ProcessGroup
    pool_group: dist.ProcessGroup
    plane_agreement_group: dist.ProcessGroup
    pool_agreement_group: dist.ProcessGroup
    plane_nodes: Sequence[int]
    pool_nodes: Sequence[int]
    roll_call: RollCall

    @property
    def size(self) -> int:
        """CP groups of the pool, and so sequences of its cells."""
        return len(self.dp_ranks)

    def group(self, *, heads_even: bool) -> dist.ProcessGroup:
        """Return the ranks that exchange tiles, in the order of a plan's bins."""
        return self.plane_group if heads_even else self.pool_group

    def agreement_group(self, *, heads_even: bool) -> dist.ProcessGroup:
        """Return the same ranks, to compare what they plan."""
        return self.plane_agreement_group if heads_even else self.pool_agreement_group

    def nodes(self, *, heads_even: bool) -> Sequence[int]:
        """Return the node of each of them."""
        return self.plane_nodes if heads_even else self.pool_nodes
