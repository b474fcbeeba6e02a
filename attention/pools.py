"""The process groups of a pooled job, made once from the user's own device mesh.

New groups must be made by every rank of the job and in one order. So ranks first tell each other
their meshes: those of a sub-mesh then make the groups of all its siblings too.
"""

import datetime
import inspect
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from libra.attention.failure import RollCall
from libra.attention.shape import PoolShape
from libra.attention.store import Store, default_store

Ranks = tuple[int, ...]


class SequencePools:
    """Pools of P neighbouring CP groups, and this rank's place among them.

    A plane is the P ranks of a pool with the same index in their CP groups: where heads divide
    evenly they hold, after the head split, the same heads of the pool's P sequences. The last
    pool is smaller where P does not divide "dp".

    Attributes:
        shape: sizes of the mesh and of its pools.
        dp_rank, cp_rank: this rank's coordinates.
        pool: index of its pool; ``place``: index of its sequence within the pool.
        size: CP groups of its pool.
        cp_group: the ranks that hold the same sequence.
        plane_group: the pool's ranks with the same ``cp_rank``, by place.
        pool_group: all the pool's ranks, by place, then by ``cp_rank``.
        plane_agreement_group, pool_agreement_group: the same ranks on a backend for CPU tensors.
        plane_nodes, pool_nodes: index of the node of each rank of these groups.
        store: the job's own c10d store.
        roll_call: finds out which rank of the pool failed.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        sequences_per_pool: int,
        *,
        ranks_per_node: int | None = None,
        store: Store | None = None,
        timeout: datetime.timedelta | None = None,
    ) -> None:
        """Make the groups; collective over all ranks of the job, each with its own sub-mesh.

        Args:
            mesh: has dimensions named "dp" and "cp", in either order, and no other.
            sequences_per_pool: P; at most the size of "dp".
            ranks_per_node: neighbouring ranks of one machine; by default the launcher's
                ``LOCAL_WORLD_SIZE``, else all ranks.
            store: the default group's when ``None``.
            timeout: of the new groups' exchanges, torch's own when ``None``: half an hour with
                gloo. The CP groups keep that of the mesh.

        Raises:
            ValueError: the mesh has other dimensions, or its ranks do not rise along both; P is
                larger than "dp" or differs among the ranks of the mesh; ``ranks_per_node`` < 1.
        """
        own = _Table.of(mesh, sequences_per_pool)
        per_node = _ranks_per_node(ranks_per_node)
        self.shape = own.shape
        self.dp_rank = mesh.get_local_rank("dp")
        self.cp_rank = mesh.get_local_rank("cp")
        self.pool = self.shape.pool(self.dp_rank)
        self.place = self.shape.place(self.dp_rank)
        self.size = self.shape.pool_size(self.pool)
        self.store = default_store() if store is None else store
        self.cp_group: dist.ProcessGroup = mesh.get_group("cp")

        tables, token = _gather(own)
        wanted = [ranks for table in tables for ranks in table.groups()]
        plane, pool = own.plane(self.pool, self.cp_rank), own.members(self.pool)
        self.plane_nodes = tuple(rank // per_node for rank in plane)
        self.pool_nodes = tuple(rank // per_node for rank in pool)
        groups = _make_groups(wanted, None, timeout)
        self.plane_group, self.pool_group = groups[plane], groups[pool]
        if "gloo" not in str(dist.get_backend(self.plane_group)):
            groups = _make_groups(wanted, "gloo", timeout)
        self.plane_agreement_group, self.pool_agreement_group = groups[plane], groups[pool]
        self.roll_call = RollCall(
            store=self.store, name=f"{token}/{pool[0]}", ranks=pool, rank=dist.get_rank()
        )


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class _Table:
    """The ranks of a mesh, and how they are cut into pools.

    Attributes:
        ranks: for each CP group its ranks, numbered over the whole job.
        sequences_per_pool: P.
    """

    ranks: tuple[Ranks, ...]
    sequences_per_pool: int

    @classmethod
    def of(cls, mesh: DeviceMesh, sequences_per_pool: int) -> "_Table":
        names = mesh.mesh_dim_names or ()
        if sorted(names) != ["cp", "dp"]:
            raise ValueError(f"mesh_dim_names={names}: must be ('dp', 'cp')")
        table = mesh.mesh if names == ("dp", "cp") else mesh.mesh.T
        # Groups number their ranks in rising order; another would not be the mesh's.
        if any((table.diff(dim=dim) <= 0).any() for dim in (0, 1)):
            raise ValueError(f"mesh={table.tolist()}: must have ranks that rise along dp and cp")
        return cls(
            ranks=tuple(tuple(row) for row in table.tolist()), sequences_per_pool=sequences_per_pool
        )

    @property
    def shape(self) -> PoolShape:
        return PoolShape(
            dp=len(self.ranks), cp=len(self.ranks[0]), sequences_per_pool=self.sequences_per_pool
        )

    def plane(self, pool: int, cp_rank: int) -> Ranks:
        return tuple(self.ranks[dp_rank][cp_rank] for dp_rank in self.shape.dp_ranks(pool))

    def members(self, pool: int) -> Ranks:
        return tuple(rank for dp_rank in self.shape.dp_ranks(pool) for rank in self.ranks[dp_rank])

    def groups(self) -> list[Ranks]:
        shape = self.shape
        pools = range(shape.num_pools)
        planes = [self.plane(pool, cp_rank) for pool in pools for cp_rank in range(shape.cp)]
        return planes + [self.members(pool) for pool in pools]


def _gather(own: _Table) -> tuple[list[_Table], str]:
    """Return the tables of all meshes of the job, and a word that these pools alone have.

    Both are the same on every rank, the tables in the same order.
    """
    told: list[tuple[_Table, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (own, secrets.token_hex(4)))
    all_told = [each for each in told if each is not None]
    tables = sorted({table for table, _ in all_told})
    for table in tables:
        others = {each.sequences_per_pool for each in tables if each.ranks == table.ranks}
        if len(others) > 1:
            raise ValueError(
                f"sequences_per_pool={own.sequences_per_pool}: must be the same on all ranks of a "
                f"mesh, not one of {sorted(others)}"
            )
    return tables, all_told[0][1]


def _make_groups(
    wanted: Iterable[Ranks], backend: str | None, timeout: datetime.timedelta | None
) -> dict[Ranks, dist.ProcessGroup]:
    """Make a group for each distinct tuple of ranks; this rank may use those it is in."""
    return {ranks: _make_group(ranks, backend, timeout) for ranks in dict.fromkeys(wanted)}


def _make_group(
    ranks: Ranks, backend: str | None, timeout: datetime.timedelta | None
) -> dist.ProcessGroup:
    options: dict[str, Any] = {}
    if list(ranks) != sorted(ranks):
        # A pool of a mesh whose outer dimension is "cp"; older versions of torch always sort.
        if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
            raise ValueError("mesh_dim_names=('cp', 'dp'): must be ('dp', 'cp') with this torch")
        options["sort_ranks"] = False
    group = dist.new_group(list(ranks), timeout=timeout, backend=backend, **options)
    return cast(dist.ProcessGroup, group)


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
