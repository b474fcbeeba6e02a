"""What a pool of CP groups bears in a unit of time: the sum of its ranks' speeds."""

from collections.abc import Iterable, Sequence

import numpy as np

from libra.attention.plan import NOMINAL_SPEED
from libra.attention.shape import PoolShape


class Capacities:
    """Capacities of CP groups and of pools, in the speed of one rank per mille."""

    def __init__(
        self, shape: PoolShape, speeds_permille: Sequence[int] = (), *, heads_even: bool = True
    ) -> None:
        """Args:
        shape: of the mesh.
        speeds_permille: of all dp C ranks, by CP group and within it; empty when all are equal.
        heads_even: whether pools are planned plane by plane.

        Raises:
            ValueError: speeds that are not a positive integer for each rank.
        """
        ranks = shape.dp * shape.cp
        own = np.array(speeds_permille or [NOMINAL_SPEED] * ranks, dtype=np.int64)
        if own.shape != (ranks,) or own.min() < 1:
            raise ValueError(
                f"speeds_permille: must be {ranks} integers of at least 1, or none, not "
                f"{len(own)} of at least {own.min(initial=0)}"
            )
        self._speeds = own.reshape(shape.dp, shape.cp)
        self._heads_even = heads_even

    def of(self, dp_ranks: Iterable[int]) -> int:
        """Return the capacity of these CP groups as one pool.

        Where each plane bears the same work, the slowest plane decides.
        """
        planes = self._speeds[list(dp_ranks)].sum(axis=0)
        return int(planes.min() * len(planes) if self._heads_even else planes.sum())
