"""Attention balanced inside a pool: a drop-in operator on token-sharded packed sequences.

After Ulysses' head split each rank holds whole sequences of its heads. Surplus tiles leave first,
in waves; half of the local tiles run while they travel, then the received ones, wave by wave, and
the other half while the last results return; backward goes the same way. Plain Ulysses is the
plan in which nothing moves: same code.

Shapes: t tokens of a rank's shard; T tokens of a sequence; H query heads, G kv heads and D head
dim of the whole model; h, g of this rank after the head split.
"""

import logging
import math
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from libra.attention.activity import refusing
from libra.attention.agreement import PlanAgreement
from libra.attention.inputs import check_inputs, layout_pool
from libra.attention.kernel import AttentionSpec, TileKernel, choose_kernel
from libra.attention.layout import BatchLayout
from libra.attention.observer import Observer
from libra.attention.pool import Pool
from libra.attention.pools import SequencePools
from libra.attention.runner import TileRunner
from libra.attention.tile_pool import pool_tiles
from libra.attention.transport import Transport
from libra.attention.ulysses import HeadExchange
from libra.attention.verify import Verifier, VerifySettings
from libra.attention.workspace import Workspace

logger = logging.getLogger(__name__)


class PooledAttention(nn.Module):
    """Causal attention within documents, its tiles evened over the ranks of a pool.

    Each layout runs in the pool of as many CP groups as it has sequences.

    Attributes:
        observer: watches kernel calls and exchange waits; ``None`` costs nothing.
        use_home_plan: run every layout as plain Ulysses.
        plan_mismatches: layouts that ran the home plan because ranks disagreed on the plan.
        verifier: compares both plans in the first steps, if asked to.
    """

    def __init__(
        self,
        pools: SequencePools,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
        kernel: TileKernel | None = None,
        resend_in_backward: bool = False,
        verify: VerifySettings | None = None,
    ) -> None:
        """Args:
        pools: the job's process groups.
        scale: of the softmax; 1 / sqrt(D) when ``None``.
        softcap, window: as ``AttentionSpec`` has them, where the kernel can.
        kernel: the fastest that can do it when ``None``.
        resend_in_backward: send moved queries and keys again in backward instead of keeping
            them between, for memory.
        verify: compare with plain Ulysses in the first steps.
        """
        super().__init__()
        self.pools = pools
        self.observer: Observer | None = None
        self.use_home_plan = False
        self.plan_mismatches = 0
        self.verifier = Verifier(verify or VerifySettings())
        self._spec = partial(AttentionSpec, softcap=softcap, window=window)
        self._scale, self._kernel = scale, kernel
        self._resend = resend_in_backward
        self._workspace = Workspace()
        # By size of the pool, and whether heads are even: all ranks of a group bring the same
        # layouts to it, whatever others some of them attend to between.
        self._agreements: dict[tuple[int, bool], PlanAgreement] = {}
        # Apart, so that a step may be run both ways for comparison.
        self._last: dict[bool, BatchLayout] = {}

    def prepare(self, layout: BatchLayout) -> None:
        """Begin to compare a coming batch's plan within the pool; never waits.

        Optional: ``forward`` does it otherwise, and then waits for a round trip. Every rank of
        the pool must prepare the same batches in the same order.

        Raises:
            ValueError: this rank has no pool of the layout's size.
        """
        with refusing():
            pool = layout_pool(layout, self.pools)
        agreement = self._agreement(layout, pool)
        if agreement:
            with pool.roll_call.guard():
                agreement.prepare(layout, home=self.use_home_plan)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q: Tensor, k: Tensor, v: Tensor, layout: BatchLayout
    ) -> Tensor:
        """Attend; collective over the ranks of the pool, and ``torch.compile`` breaks its graph.

        Args:
            q: [t, H, D], this rank's contiguous shard of its sequence: rows ``layout.shard``.
            k: [t, G, D]; ``v`` like it.
            layout: the cell's, as this rank sees it.

        Returns:
            [t, H, D]; rows of padding are zero.

        Raises:
            ValueError: shapes, dtypes or devices do not fit each other, the mesh or the layout,
                or no kernel can do it; raised before anything is sent.
            PoolError: a rank of the pool failed; says which, as far as known.
        """
        with refusing():
            last = self._last.get(self.use_home_plan)
            pool = check_inputs(q, k, v, layout, self.pools, last)
            runner = self._runner(q)
        self._last[self.use_home_plan] = layout
        if self.observer:
            self.observer.begin(layout)
        with pool.roll_call.guard():
            home = not self._ranks_agree(layout, pool) or self.use_home_plan
        exchange = HeadExchange(
            heads=layout.heads,
            tokens=layout.tokens,
            group=self.pools.cp_group,
            roll_call=pool.roll_call,
        )
        split = exchange.split(q, k, v)
        return exchange.join(self._attend(split, layout, pool, runner, home=home))

    def _attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        layout: BatchLayout,
        pool: Pool,
        runner: TileRunner,
        *,
        home: bool,
    ) -> Tensor:
        """Return [T, h, D] of [T, h, D] and two [T, g, D]."""
        transport = Transport(
            group=pool.group(heads_even=layout.heads.even),
            workspace=self._workspace,
            resend=self._resend,
            observer=self.observer,
            roll_call=pool.roll_call,
        )
        attend = partial(pool_tiles, transport=transport, runner=runner)
        plan = layout.home_plan if home else layout.plan
        # Also where nothing moves here: other planes of the pool may compare, and all do or none.
        if self.verifier.wants(layout.step):
            return self.verifier.attend(
                qkv,
                partial(attend, plan=plan),
                partial(attend, plan=layout.home_plan),
                pool=pool,
                step=layout.step,
            )
        return attend(*qkv, plan=plan)

    def _runner(self, q: Tensor) -> TileRunner:
        """Return the kernel and what it computes; raise ``ValueError`` if it cannot."""
        dim = q.shape[2]
        spec = self._spec(scale=1 / math.sqrt(dim) if self._scale is None else self._scale)
        if self._kernel is None:
            return TileRunner(choose_kernel(q.device, q.dtype, dim, spec), spec, self.observer)
        reason = self._kernel.refusal(spec, device=q.device, dtype=q.dtype, head_dim=dim)
        if reason:
            raise ValueError(f"kernel={self._kernel.name} {reason}")
        return TileRunner(self._kernel, spec, self.observer)

    def _agreement(self, layout: BatchLayout, pool: Pool) -> PlanAgreement | None:
        """Return who compares the plans of a pool, ``None`` where no other's plan matters."""
        even = layout.heads.even
        group = pool.agreement_group(heads_even=even)
        if layout.alone or dist.get_world_size(group) == 1:
            return None
        return self._agreements.setdefault((pool.size, even), PlanAgreement(group))

    def _ranks_agree(self, layout: BatchLayout, pool: Pool) -> bool:
        """Return whether all ranks that exchange tiles have made the same plan.

        Where they have not, all see it and run the cell at home.
        """
        agreement = self._agreement(layout, pool)
        if agreement is None:
            return True
        agreed, first = agreement.agreed(layout, home=self.use_home_plan)
        if not agreed and first:
            self.plan_mismatches += 1
            if self.observer:
                self.observer.mismatch()
            logger.error(
                "Ranks of the pool disagree on the plan of step %d, micro-batch %d: running plain "
                "Ulysses.",
                layout.step,
                layout.micro_batch,
            )
        return agreed
