"""Make the process groups of all pools of a job, those of other meshes included.

New groups must be made by every rank of the job and in one order. So ranks first tell each other
their meshes: those of a sub-mesh then make the groups of all its siblings too.
"""

import datetime
import inspect
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from libra.attention.shape import PoolShape

Ranks = tuple[int, ...]
Timeout = datetime.timedelta | None


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class PoolTable:
    """The ranks of a mesh, and how they are cut into pools.

    Attributes:
        ranks: for each CP group its ranks, numbered over the whole job.
        sequences_per_pool: P.
        largest_pool: the most CP groups of an elastic pool.
    """

    ranks: tuple[Ranks, ...]
    sequences_per_pool: int
    largest_pool: int

    @classmethod
    def of(cls, mesh: DeviceMesh, sequences_per_pool: int, largest_pool: int) -> "PoolTable":
        """Return a mesh's table; raise ``ValueError`` for a mesh that cannot be pooled."""
        names = mesh.mesh_dim_names or ()
        if sorted(names) != ["cp", "dp"]:
            raise ValueError(f"mesh_dim_names={names}: must be ('dp', 'cp')")
        table = mesh.mesh if names == ("dp", "cp") else mesh.mesh.T
        # Groups number their ranks in rising order; another would not be the mesh's.
        if any((table.diff(dim=dim) <= 0).any() for dim in (0, 1)):
            raise ValueError(f"mesh={table.tolist()}: must have ranks that rise along dp and cp")
        return cls(
            ranks=tuple(tuple(row) for row in table.tolist()),
            sequences_per_pool=sequences_per_pool,
            largest_pool=largest_pool,
        )

    @property
    def shape(self) -> PoolShape:
        return PoolShape(
            dp=len(self.ranks),
            cp=len(self.ranks[0]),
            sequences_per_pool=self.sequences_per_pool,
            largest_pool=self.largest_pool,
        )

    def plane(self, block: range, cp_rank: int) -> Ranks:
        """Return the ranks of one plane of a pool, by place."""
        return tuple(self.ranks[dp_rank][cp_rank] for dp_rank in block)

    def members(self, block: range) -> Ranks:
        """Return all ranks of a pool, by place, then by ``cp_rank``."""
        return tuple(rank for dp_rank in block for rank in self.ranks[dp_rank])

    def groups(self) -> list[Ranks]:
        """Return the ranks of every plane and pool there can be, in the order of making."""
        shape = self.shape
        blocks = dict.fromkeys(block for own in range(shape.dp) for block in shape.blocks(own))
        planes = [self.plane(block, cp_rank) for block in blocks for cp_rank in range(shape.cp)]
        return planes + [self.members(block) for block in blocks]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolGroups:
    """The groups of a job's pools by their ranks; this rank may use those it is in.

    Attributes:
        tiles: to exchange tiles in.
        agreement: of the same ranks, on a backend for CPU tensors.
        token: a word that these groups alone have, the same on all ranks.
    """

    tiles: dict[Ranks, dist.ProcessGroup]
    agreement: dict[Ranks, dist.ProcessGroup]
    token: str


def make_groups(own: PoolTable, timeout: Timeout) -> PoolGroups:
    """Make the groups of all meshes; collective over all ranks of the job.

    Raises:
        ValueError: ranks of a mesh would cut it into different pools.
    """
    tables, token = _gather(own)
    # Where heads are not split a plane is a pool: one group serves as both.
    wanted = dict.fromkeys(ranks for table in tables for ranks in table.groups())
    tiles = _make(wanted, None, timeout)
    inside = next(group for ranks, group in tiles.items() if dist.get_rank() in ranks)
    agree_apart = "gloo" not in str(dist.get_backend(inside))
    agreement = _make(wanted, "gloo", timeout) if agree_apart else tiles
    return PoolGroups(tiles=tiles, agreement=agreement, token=token)


def _gather(own: PoolTable) -> tuple[list[PoolTable], str]:
    """Return the tables of all meshes of the job, and a word that no other call returns.

    Both are the same on every rank, the tables in the same order.
    """
    told: list[tuple[PoolTable, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (own, secrets.token_hex(4)))
    all_told = [each for each in told if each is not None]
    tables = sorted({table for table, _ in all_told})
    for table in tables:
        for name in ("sequences_per_pool", "largest_pool"):
            values = {getattr(each, name) for each in tables if each.ranks == table.ranks}
            if len(values) > 1:
                raise ValueError(
                    f"{name}={getattr(own, name)}: must be the same on all ranks of a mesh, not "
                    f"one of {sorted(values)}"
                )
    return tables, all_told[0][1]


def _make(
    wanted: Iterable[Ranks], backend: str | None, timeout: Timeout
) -> dict[Ranks, dist.ProcessGroup]:
    return {ranks: _make_group(ranks, backend, timeout) for ranks in wanted}


def _make_group(ranks: Ranks, backend: str | None, timeout: Timeout) -> dist.ProcessGroup:
    options: dict[str, Any] = {}
    if list(ranks) != sorted(ranks):
        # A pool of a mesh whose outer dimension is "cp"; older versions of torch always sort.
        if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
            raise ValueError("mesh_dim_names=('cp', 'dp'): must be ('dp', 'cp') with this torch")
        options["sort_ranks"] = False
    group = dist.new_group(list(ranks), timeout=timeout, backend=backend, **options)
    return cast(dist.ProcessGroup, group)
