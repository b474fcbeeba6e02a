"""How ranks stand in pools: pure arithmetic on a DP x CP mesh."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolShape:
    """A mesh of ``dp`` CP groups of ``cp`` ranks, cut into pools of neighbouring groups.

    Attributes:
        dp: number of CP groups; each holds one packed sequence a micro-batch.
        cp: ranks of a CP group.
        sequences_per_pool: CP groups of a pool, P.
    """

    dp: int
    cp: int
    sequences_per_pool: int

    def __post_init__(self) -> None:
        for name in ("dp", "cp", "sequences_per_pool"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.dp % self.sequences_per_pool:
            raise ValueError(
                f"sequences_per_pool={self.sequences_per_pool}: must divide dp={self.dp}"
            )

    @property
    def num_pools(self) -> int:
        return self.dp // self.sequences_per_pool

    def pool(self, dp_rank: int) -> int:
        """Return the index of the pool that a CP group belongs to."""
        return dp_rank // self.sequences_per_pool

    def place(self, dp_rank: int) -> int:
        """Return the index of a CP group's sequence within its pool."""
        return dp_rank % self.sequences_per_pool
