"""The pools of a job and their process groups, made once from the user's own device mesh."""

import datetime
import os

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from libra.attention.failure import RollCall
from libra.attention.groups import PoolGroups, PoolTable, make_groups
from libra.attention.pool import Pool
from libra.attention.store import Store, default_store


class SequencePools:
    """Pools of P neighbouring CP groups, and this rank's place among them.

    The last pool is smaller where P does not divide "dp". With ``largest_pool``, also pools of
    2 P, 4 P, ... neighbouring CP groups, where as many are there: elastic pools. Each micro-batch
    may use another, and ranks that are not in it need not know.

    Groups for s CP groups a pool: dp / s * C planes and dp / s pools (one and the same where C
    is 1), and as many for CPU tensors unless the backend is gloo. Every doubling adds half as
    many again, so all together less than twice those of P alone.

    Attributes:
        shape: sizes of the mesh and of its pools.
        dp_rank, cp_rank: this rank's coordinates.
        pool: index of its pool of P; ``place``: index of its sequence within that pool.
        size: CP groups of its pool of P: P, or fewer in the last one.
        plane_nodes, pool_nodes: index of the node of each rank of that pool's groups.
        cp_group: the ranks that hold the same sequence.
        store: the job's own c10d store.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        sequences_per_pool: int,
        *,
        largest_pool: int = 0,
        ranks_per_node: int | None = None,
        store: Store | None = None,
        timeout: datetime.timedelta | None = None,
    ) -> None:
        """Make the groups; collective over all ranks of the job, each with its own sub-mesh.

        Args:
            mesh: has dimensions named "dp" and "cp", in either order, and no other.
            sequences_per_pool: P; at most the size of "dp".
            largest_pool: the most CP groups of an elastic pool: P doubled any number of times, at
                most the size of "dp"; 0 for pools of P only.
            ranks_per_node: neighbouring ranks of one machine; by default the launcher's
                ``LOCAL_WORLD_SIZE``, else all ranks.
            store: the default group's when ``None``.
            timeout: of the new groups' exchanges, torch's own when ``None``: half an hour with
                gloo. The CP groups keep that of the mesh.

        Raises:
            ValueError: the mesh has other dimensions, or its ranks do not rise along both; P or
                ``largest_pool`` does not fit "dp", or differs among the ranks of the mesh;
                ``ranks_per_node`` < 1.
        """
        table = PoolTable.of(mesh, sequences_per_pool, largest_pool)
        per_node = _ranks_per_node(ranks_per_node)
        self.shape = table.shape
        self.dp_rank = mesh.get_local_rank("dp")
        self.cp_rank = mesh.get_local_rank("cp")
        self.pool = self.shape.pool(self.dp_rank)
        self.store = default_store() if store is None else store
        self.cp_group: dist.ProcessGroup = mesh.get_group("cp")

        groups = make_groups(table, timeout)
        self._pools = {
            len(block): self._make_pool(block, table, groups, per_node)
            for block in self.shape.blocks(self.dp_rank)
        }
        fixed = self.of(self.shape.pool_size(self.pool))
        self.place, self.size = fixed.place, fixed.size
        self.plane_nodes, self.pool_nodes = fixed.plane_nodes, fixed.pool_nodes

    def of(self, size: int) -> Pool:
        """Return the pool of ``size`` CP groups that this rank can be in.

        Raises:
            ValueError: there is no pool of that size at this place; names those there are.
        """
        return self._pools[len(self.shape.block(self.dp_rank, size))]

    @property
    def sizes(self) -> tuple[int, ...]:
        """CP groups of each pool that this rank can be in, the smallest first."""
        return tuple(self._pools)

    def _make_pool(
        self, block: range, table: PoolTable, groups: PoolGroups, ranks_per_node: int
    ) -> Pool:
        plane, members = table.plane(block, self.cp_rank), table.members(block)
        return Pool(
            place=self.dp_rank - block.start,
            dp_ranks=block,
            plane_group=groups.tiles[plane],
            pool_group=groups.tiles[members],
            plane_agreement_group=groups.agreement[plane],
            pool_agreement_group=groups.agreement[members],
            plane_nodes=tuple(rank // ranks_per_node for rank in plane),
            pool_nodes=tuple(rank // ranks_per_node for rank in members),
            roll_call=RollCall(
                store=self.store,
                name=f"{groups.token}/{members[0]}/{len(block)}",
                ranks=members,
                rank=dist.get_rank(),
            ),
        )


def _ranks_per_node(given: int | None) -> int:
    if given is None:
        name, text = "LOCAL_WORLD_SIZE", os.environ.get("LOCAL_WORLD_SIZE")
        if text is None:
            return dist.get_world_size()
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"{name}={text}: must be an integer of at least 1")
        return int(text)
    if given < 1:
        raise ValueError(f"ranks_per_node={given}: must be at least 1")
    return given
