"""The process groups of a pooled job, made once from the user's own device mesh."""

from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from libra.attention.shape import PoolShape


class SequencePools:
    """Pools of P neighbouring CP groups, and this rank's place among them.

    A plane is the P ranks of a pool with the same index in their CP groups: after the head split
    they hold the same heads of the pool's P sequences, and tiles move among them only.

    Attributes:
        shape: sizes of the mesh and of a pool.
        dp_rank, cp_rank: this rank's coordinates.
        pool: index of its pool; ``place``: index of its sequence within the pool.
        cp_group: the ranks that hold the same sequence.
        plane_group: the ranks that exchange tiles.
        agreement_group: the same ranks on a backend for CPU tensors.
    """

    def __init__(self, mesh: DeviceMesh, sequences_per_pool: int) -> None:
        """Make the groups; collective, every rank of the mesh must call it.

        Args:
            mesh: has dimensions named "dp" and "cp".
            sequences_per_pool: P; must divide the size of "dp".

        Raises:
            ValueError: the mesh lacks a dimension, or P does not divide it.
        """
        names = mesh.mesh_dim_names or ()
        if set(names) != {"dp", "cp"}:
            raise ValueError(f"mesh_dim_names={names}: must be ('dp', 'cp')")
        ranks = mesh.mesh if names == ("dp", "cp") else mesh.mesh.T
        dp, cp = ranks.shape
        self.shape = PoolShape(dp=dp, cp=cp, sequences_per_pool=sequences_per_pool)
        self.dp_rank = mesh.get_local_rank("dp")
        self.cp_rank = mesh.get_local_rank("cp")
        self.pool = self.shape.pool(self.dp_rank)
        self.place = self.shape.place(self.dp_rank)
        self.cp_group: dist.ProcessGroup = mesh.get_group("cp")
        self.plane_group = self._make_planes(ranks, backend=None)
        on_cpu = "gloo" in str(dist.get_backend(self.plane_group))
        self.agreement_group = self.plane_group if on_cpu else self._make_planes(ranks, "gloo")

    def _make_planes(self, ranks: torch.Tensor, backend: str | None) -> dist.ProcessGroup:
        """Make every plane's group on every rank, as ``new_group`` demands; return our own."""
        size = self.shape.sequences_per_pool
        own: dist.ProcessGroup | None = None
        for pool in range(self.shape.num_pools):
            for cp_rank in range(self.shape.cp):
                members = ranks[pool * size : (pool + 1) * size, cp_rank].tolist()
                group = dist.new_group(members, backend=backend)
                if (pool, cp_rank) == (self.pool, self.cp_rank):
                    own = cast(dist.ProcessGroup, group)
        assert own is not None
        return own
