"""Draw optimizer steps: pack, agree on a policy, place, plan, and yield each rank its own part.

What a step trains on depends on seed and step alone. The policy decides only which CP group
holds which of the step's sequences, and where tiles are computed.

Shapes: N sequences of a step; M cells, each of as many slots as its pool has CP groups.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.agent.agreement import agree
from libra.attention.cost import tile_features
from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.shape import PoolShape
from libra.balancer.packing import Method, PackedSequences, Segments, check_lengths, pack
from libra.balancer.placement import place
from libra.balancer.policy import HOME_POLICY, Policy

Int64 = NDArray[np.int64]


class Pools(Protocol):
    """What a sampler must know of ``SequencePools``: sizes and this rank's coordinates."""

    @property
    def shape(self) -> PoolShape: ...
    @property
    def dp_rank(self) -> int: ...
    @property
    def cp_rank(self) -> int: ...
    @property
    def pool(self) -> int: ...
    @property
    def place(self) -> int: ...
    @property
    def plane_nodes(self) -> Sequence[int]: ...
    @property
    def pool_nodes(self) -> Sequence[int]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What this rank's CP group holds in one micro-batch, and the plan that comes with it."""

    layout: BatchLayout
    segments: Segments


class PoolSampler:
    """Yield this rank's cells, step after step.

    Attributes:
        policy_source: gives the newest policy that this rank knows; the agent sets it.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        pools: Pools,
        *,
        tokens: int,
        global_batch: int,
        query_heads: int,
        kv_heads: int,
        seed: int = 0,
        packing: Method = "best_fit",
        planning: PlanSettings | None = None,
        store: Any = None,
        attempt: int = 0,
        timeout_s: float = 600.0,
    ) -> None:
        """Set up; nothing is packed before the first step is drawn.

        Args:
            lengths: tokens of every document.
            pools: this rank's place in the mesh.
            tokens: tokens of a packed sequence.
            global_batch: packed sequences of an optimizer step, N; a multiple of the DP size.
            query_heads, kv_heads: of the model; plans are made for them.
            seed: with the epoch, decides packing and order.
            packing: "best_fit" or "stream".
            planning: blocks, memory and waves of plans; the rest is the policy's.
            store: the job's c10d store; the default group's when ``None``.
            attempt: restarts of the job so far; decisions of another attempt never count.
            timeout_s: longest wait for the other ranks' agreement on a step.

        Raises:
            ValueError: a setting does not fit the mesh, or a length is not a positive integer.
        """
        shape = pools.shape
        if tokens < 1:
            raise ValueError(f"tokens={tokens}: must be at least 1")
        if global_batch < 1 or global_batch % shape.dp:
            raise ValueError(f"global_batch={global_batch}: must be a multiple of dp={shape.dp}")
        self.policy_source: Callable[[], Policy] = lambda: HOME_POLICY
        self._lengths = check_lengths(lengths)
        self._pools = pools
        self._tokens = tokens
        self._global_batch = global_batch
        self._seed = seed
        self._packing: Method = packing
        self._planning = planning or PlanSettings()
        self._heads = HeadSplit(query_heads=query_heads, kv_heads=kv_heads, cp=shape.cp)
        self._store, self._attempt, self._timeout_s = store, attempt, timeout_s
        self._epoch = 0
        # Two epochs: prefetch may already be in the next one.
        self._packed = lru_cache(maxsize=2)(self._pack)

    @property
    def pools(self) -> Pools:
        return self._pools

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of any epoch; sequences that do not fill a last step are left out."""
        return len(self._packed(0)) // self._global_batch

    @property
    def padding_fraction(self) -> float:
        """Share of an epoch's tokens that hold no document."""
        return self._packed(self._epoch).padding_fraction

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration draw this epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self.steps_per_epoch * (self._global_batch // self._pools.shape.dp)

    def __iter__(self) -> Iterator[Cell]:
        """Yield this rank's cells of the epoch, micro-batch by micro-batch."""
        first = self._epoch * self.steps_per_epoch
        for step in range(first, first + self.steps_per_epoch):
            yield from self.cells(step, self.agree(step))

    def agree(self, step: int) -> Policy:
        """Return the policy of a step, the same on all ranks; blocks until one has decided.

        Raises:
            TimeoutError: no answer in time; going on could train ranks on different data.
        """
        return agree(
            self._store,
            attempt=self._attempt,
            step=step,
            propose=self.policy_source,
            timeout_s=self._timeout_s,
        )

    def label_tokens(self, step: int) -> int:
        """Return the tokens of a step, over all ranks, that have a next token to predict."""
        packed, drawn = self._draw(step)
        return sum(int((packed.sequence(index).lengths - 1).sum()) for index in drawn)

    def cells(self, step: int, policy: Policy) -> list[Cell]:
        """Return this rank's micro-batches of a step, counted over epochs, under a policy; pure.

        Without pooling the sequences come in order and every tile stays home.
        """
        packed, drawn = self._draw(step)
        shape = self._pools.shape
        slots = self._place(packed, drawn, policy).reshape(-1, shape.dp)
        own = slots[:, shape.dp_ranks(self._pools.pool)]
        return [
            self._cell(packed, sequences, policy, step=step, micro_batch=micro_batch)
            for micro_batch, sequences in enumerate(own)
        ]

    def _pack(self, epoch: int) -> PackedSequences:
        packed = pack(
            self._lengths,
            tokens=self._tokens,
            seed=self._seed,
            epoch=epoch,
            method=self._packing,
        )
        if len(packed) < self._global_batch:
            full = f"{len(packed)} sequences of {self._tokens} tokens"
            raise ValueError(f"global_batch={self._global_batch}: the documents fill only {full}")
        return packed

    def _draw(self, step: int) -> tuple[PackedSequences, Int64]:
        """Return the epoch's sequences and the indices of the step's N."""
        epoch, position = divmod(step, self.steps_per_epoch)
        first = position * self._global_batch
        return self._packed(epoch), np.arange(first, first + self._global_batch)

    def _place(self, packed: PackedSequences, drawn: Int64, policy: Policy) -> Int64:
        """Return the step's sequences in the order of cells and their slots, [N]."""
        if not policy.pooling:
            return drawn
        cost = policy.tile_cost
        costs = np.array(
            [cost.ticks(tile_features(0, packed.sequence(index).lengths)).sum() for index in drawn],
            dtype=np.int64,
        )
        # Heaviest first: cells of similar cost run in the same micro-batch.
        return drawn[place(costs, self._pools.shape.cell_sizes(len(drawn))).order]

    def _cell(
        self,
        packed: PackedSequences,
        sequences: Int64,
        policy: Policy,
        *,
        step: int,
        micro_batch: int,
    ) -> Cell:
        members = [packed.sequence(int(index)) for index in sequences]
        layout = make_layout(
            [member.lengths for member in members],
            self._pools.place,
            tokens=self._tokens,
            heads=self._heads,
            cp_rank=self._pools.cp_rank,
            cost=policy.tile_cost,
            settings=replace(
                self._planning,
                pooling=policy.pooling,
                tolerance_permille=policy.tolerance_permille,
                min_gain_permille=policy.min_gain_permille,
            ),
            speeds_permille=self._speeds(policy),
            nodes=self._pools.plane_nodes if self._heads.even else self._pools.pool_nodes,
            step=step,
            micro_batch=micro_batch,
            policy_version=policy.version,
            policy_checksum=policy.checksum,
        )
        return Cell(layout=layout, segments=members[self._pools.place])

    def _speeds(self, policy: Policy) -> tuple[int, ...]:
        """Return the speeds of the ranks that exchange tiles; none after a change of size."""
        shape, pools, speeds = self._pools.shape, self._pools, policy.speeds_permille
        if len(speeds) != shape.dp * shape.cp:
            return ()
        cp_ranks = [pools.cp_rank] if self._heads.even else range(shape.cp)
        return tuple(
            speeds[dp_rank * shape.cp + cp_rank]
            for dp_rank in shape.dp_ranks(pools.pool)
            for cp_rank in cp_ranks
        )
