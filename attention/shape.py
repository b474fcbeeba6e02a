"""How ranks stand in pools: pure arithmetic on a DP x CP mesh."""

from dataclasses import dataclass


def token_range(tokens: int, cp_rank: int, cp: int) -> tuple[int, int]:
    """Return the first and one past the last token of a rank's shard; some differ by one."""
    return cp_rank * tokens // cp, (cp_rank + 1) * tokens // cp


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolShape:
    """A mesh of ``dp`` CP groups of ``cp`` ranks, cut into pools of neighbouring groups.

    Where P does not divide ``dp`` the last pool is the smaller one that is left. Elastic pools are
    P, 2 P, 4 P, ... neighbouring CP groups, up to ``largest_pool``; each begins at a multiple of
    its own size, so that any two are apart or one holds the other.

    Attributes:
        dp: number of CP groups; each holds one packed sequence a micro-batch.
        cp: ranks of a CP group.
        sequences_per_pool: CP groups of a pool, P; at most ``dp``.
        largest_pool: the most CP groups of an elastic pool; 0, or P itself, is none but fixed ones.
    """

    dp: int
    cp: int
    sequences_per_pool: int
    largest_pool: int = 0

    def __post_init__(self) -> None:
        for name in ("dp", "cp", "sequences_per_pool"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.sequences_per_pool > self.dp:
            raise ValueError(
                f"sequences_per_pool={self.sequences_per_pool}: must be at most dp={self.dp}"
            )
        pools, rest = divmod(self.largest_pool, self.sequences_per_pool)
        if rest or pools < 0 or pools & (pools - 1) or self.largest_pool > self.dp:
            raise ValueError(
                f"largest_pool={self.largest_pool}: must be 0 or sequences_per_pool="
                f"{self.sequences_per_pool} doubled, at most dp={self.dp}"
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

    @property
    def pool_sizes(self) -> tuple[int, ...]:
        """Sizes that a whole pool can have: P, and its doublings up to ``largest_pool``."""
        sizes = [self.sequences_per_pool]
        while 2 * sizes[-1] <= self.largest_pool:
            sizes.append(2 * sizes[-1])
        return tuple(sizes)

    def blocks(self, dp_rank: int) -> tuple[range, ...]:
        """Return the CP groups of every pool that a CP group can be in, its smallest first."""
        starts = [(dp_rank // size * size, size) for size in self.pool_sizes[1:]]
        larger = (range(first, first + size) for first, size in starts if first + size <= self.dp)
        return self.dp_ranks(self.pool(dp_rank)), *larger

    def block(self, dp_rank: int, size: int) -> range:
        """Return the CP groups of the pool of ``size`` that a CP group can be in.

        Raises:
            ValueError: there is no pool of that size at this place.
        """
        own = {len(block): block for block in self.blocks(dp_rank)}
        if size not in own:
            raise ValueError(
                f"size={size}: must be {' or '.join(map(str, own))}, the sizes of pools that "
                f"dp_rank={dp_rank} can be in"
            )
        return own[size]

    def cell_sizes(self, num_sequences: int) -> tuple[int, ...]:
        """Return the size of every cell of a step: its micro-batches in turn, pool by pool.

        Raises:
            ValueError: the step's sequences do not fill whole micro-batches of ``dp``.
        """
        if num_sequences % self.dp:
            raise ValueError(f"num_sequences={num_sequences}: must be a multiple of dp={self.dp}")
        pools = tuple(map(self.pool_size, range(self.num_pools)))
        return pools * (num_sequences // self.dp)
