"""How ranks stand in pools: pure arithmetic on a DP x CP mesh."""

from dataclasses import dataclass


def token_range(tokens: int, cp_rank: int, cp: int) -> tuple[int, int]:
    """Return the first and one past the last token of a rank's shard; some differ by one."""
    return cp_rank * tokens // cp, (cp_rank + 1) * tokens // cp


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolShape:
    """A mesh of ``dp`` CP groups of ``cp`` ranks, cut into pools of neighbouring groups.

    Where P does not divide ``dp`` the last pool is the smaller one that is left.

    Attributes:
        dp: number of CP groups; each holds one packed sequence a micro-batch.
        cp: ranks of a CP group.
        sequences_per_pool: CP groups of a pool, P; at most ``dp``.
    """

    dp: int
    cp: int
    sequences_per_pool: int

    def __post_init__(self) -> None:
        for name in ("dp", "cp", "sequences_per_pool"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.sequences_per_pool > self.dp:
            raise ValueError(
                f"sequences_per_pool={self.sequences_per_pool}: must be at most dp={self.dp}"
            )

    @property
    def num_pools(self) -> int:
        """Pools of the mesh, a smaller last one included."""
        return -(-self.dp // self.sequences_per_pool)

    def pool(self, dp_rank: int) -> int:
        """Return the index of the pool that a CP group belongs to."""
        return dp_rank // self.sequences_per_pool

    def place(self, dp_rank: int) -> int:
        """Return the index of a CP group's sequence within its pool."""
        return dp_rank % self.sequences_per_pool

    def dp_ranks(self, pool: int) -> range:
        """Return the CP groups of a pool, in the order of their places."""
        first = pool * self.sequences_per_pool
        return range(first, min(first + self.sequences_per_pool, self.dp))

    def pool_size(self, pool: int) -> int:
        """Return how many CP groups a pool has: P, or fewer in the last one."""
        return len(self.dp_ranks(pool))

    def cell_sizes(self, num_sequences: int) -> tuple[int, ...]:
        """Return the size of every cell of a step: its micro-batches in turn, pool by pool.

        Raises:
            ValueError: the step's sequences do not fill whole micro-batches of ``dp``.
        """
        if num_sequences % self.dp:
            raise ValueError(f"num_sequences={num_sequences}: must be a multiple of dp={self.dp}")
        pools = tuple(map(self.pool_size, range(self.num_pools)))
        return pools * (num_sequences // self.dp)
