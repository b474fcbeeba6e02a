"""Attention balanced inside a pool: a drop-in operator on token-sharded packed sequences.

After Ulysses' head split each rank of a plane holds whole sequences of its heads. Surplus tiles
leave first, half of the local tiles run while they travel, then the received ones, and the
other half runs while results return; backward goes the same way. Plain Ulysses is the plan in
which nothing moves: same code.

Shapes: t tokens of a rank's shard; T tokens of a sequence; H query heads, G kv heads and D head
dim of the whole model; h, g of this rank after the head split.
"""

import logging
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from libra.attention.kernel import TileKernel, choose_kernel
from libra.attention.layout import BatchLayout
from libra.attention.observer import Observer
from libra.attention.pools import SequencePools
from libra.attention.tile_pool import pool_tiles
from libra.attention.tiles import TileRunner
from libra.attention.ulysses import join_heads, split_heads

logger = logging.getLogger(__name__)


class PooledAttention(nn.Module):
    """Causal attention within documents, its tiles evened over the ranks of a pool.

    Attributes:
        observer: watches kernel calls and exchange waits; ``None`` costs nothing.
        use_home_plan: run every layout as plain Ulysses.
        plan_mismatches: layouts that ran the home plan because ranks disagreed on the plan.
    """

    def __init__(
        self,
        pools: SequencePools,
        *,
        scale: float | None = None,
        kernel: TileKernel | None = None,
    ) -> None:
        """Args: ``scale`` of the softmax, 1 / sqrt(D) by default; ``kernel`` by device."""
        super().__init__()
        self.pools = pools
        self.scale = scale
        self.kernel = kernel
        self.observer: Observer | None = None
        self.use_home_plan = False
        self.plan_mismatches = 0
        self._agreed: tuple[BatchLayout, bool, bool] | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: BatchLayout) -> Tensor:
        """Attend; collective over the ranks of the pool.

        Args:
            q: [t, H, D], this rank's contiguous shard of its sequence, t = T / C.
            k: [t, G, D]; ``v`` like it.
            layout: the cell's, as this rank sees it.

        Returns:
            [t, H, D]; rows of padding are zero.

        Raises:
            ValueError: shapes, dtypes or devices do not fit each other, the mesh or the layout;
                raised before anything is sent.
        """
        self._check(q, k, v, layout)
        if self.observer:
            self.observer.begin(layout)
        home = not self._ranks_agree(layout) or self.use_home_plan
        plan = layout.home_plan if home else layout.plan
        q, k, v = self._split(q, k, v)
        runner = TileRunner(
            self.kernel or choose_kernel(q.device),
            1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale,
            self.observer,
        )
        out = pool_tiles(q, k, v, plan, self.pools.plane_group, runner)
        return join_heads(out, self.pools.cp_group)

    def _split(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Return [T, h, D] and two [T, g, D], by one head split for all three."""
        cp = self.pools.shape.cp
        if cp == 1:
            return q, k, v
        # (t, C, heads / C, D) each, so that every rank's share of q, k and v lies together.
        shares = [torch.unflatten(x, 1, (cp, x.shape[1] // cp)) for x in (q, k, v)]
        own = split_heads(torch.cat(shares, dim=2).flatten(1, 2), self.pools.cp_group)
        return torch.split(own, [x.shape[1] // cp for x in (q, k, v)], dim=1)

    def _check(self, q: Tensor, k: Tensor, v: Tensor, layout: BatchLayout) -> None:
        cp = self.pools.shape.cp
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.dim() != 3 or x.shape[0] * cp != layout.tokens:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}: must be "
                    f"[{layout.tokens // cp}, heads, head_dim] for a layout of "
                    f"{layout.tokens} tokens over {cp} ranks"
                )
            if x.dtype != q.dtype or x.device != q.device or x.shape[2] != q.shape[2]:
                raise ValueError(f"{name} differs from q in dtype, device or head_dim")
            if x.shape[1] % cp:
                raise ValueError(f"{name} has {x.shape[1]} heads: must be a multiple of cp={cp}")
        if k.shape != v.shape or q.shape[1] % k.shape[1]:
            raise ValueError(
                f"q, k, v have {q.shape[1]}, {k.shape[1]}, {v.shape[1]} heads: k and v must have "
                "equally many, and they must divide q's"
            )
        if len(layout.lengths) != self.pools.shape.sequences_per_pool:
            raise ValueError(
                f"layout has {len(layout.lengths)} sequences: the pool has "
                f"{self.pools.shape.sequences_per_pool}"
            )
        if layout.place != self.pools.place:
            raise ValueError(
                f"layout is for place {layout.place}, this rank's is {self.pools.place}"
            )

    def _ranks_agree(self, layout: BatchLayout) -> bool:
        """Compare the plan's digest within the plane, once for each layout.

        Ranks whose plans differ would send rows that nobody expects and abort; all of them see
        the same verdict and take the same branch. A rank whose own plan moves nothing takes part
        too: it cannot know that the others' do not.
        """
        if self.pools.shape.sequences_per_pool == 1:
            return True
        known = self._agreed
        if known is not None and known[0] is layout and known[1] == self.use_home_plan:
            return known[2]
        digest = layout.digest ^ int(self.use_home_plan)
        extremes = torch.tensor([digest, -digest], dtype=torch.int64)
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.pools.agreement_group)
        agreed = int(extremes[0]) == -int(extremes[1])
        if not agreed:
            self.plan_mismatches += 1
            if self.observer:
                self.observer.mismatch()
            logger.error(
                "Ranks of the pool disagree on the plan of step %d, micro-batch %d: running plain "
                "Ulysses.",
                layout.step,
                layout.micro_batch,
            )
        self._agreed = (layout, self.use_home_plan, agreed)
        return agreed
