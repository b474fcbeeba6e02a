"""From a step's documents and a policy to this rank's cells.

Every rank computes the placement of the whole step by itself and takes its own part of it.

Shapes: N sequences of a step, S documents; B micro-batches.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from libra.agent.cell import Cell
from libra.agent.drawing import Drawing
from libra.attention.heads import HeadSplit
from libra.attention.plan import PlanSettings
from libra.attention.shape import PoolShape
from libra.balancer.policy import Policy
from libra.balancer.step_placement import Meeting, StepPlacement, place_in_order, place_step

logger = logging.getLogger(__name__)

Int64 = NDArray[np.int64]


class Nodes(Protocol):
    """What is asked of a pool: the node of each of its ranks."""

    @property
    def plane_nodes(self) -> Sequence[int]: ...
    @property
    def pool_nodes(self) -> Sequence[int]: ...


class Pools(Protocol):
    """What a sampler must know of ``SequencePools``: sizes and this rank's coordinates."""

    @property
    def shape(self) -> PoolShape: ...
    @property
    def dp_rank(self) -> int: ...
    @property
    def cp_rank(self) -> int: ...
    def of(self, size: int, /) -> Nodes: ...


class Placing:
    """Place steps, and cut out what one rank holds of them."""

    def __init__(
        self,
        drawing: Drawing,
        pools: Pools,
        *,
        tokens: int,
        heads: HeadSplit,
        meeting: Meeting,
        planning: PlanSettings,
    ) -> None:
        if meeting not in get_args(Meeting):
            raise ValueError(f"meeting={meeting!r}: must be 'micro_batch' or 'step'")
        self._drawing, self._pools = drawing, pools
        self._tokens, self._heads = tokens, heads
        self._meeting: Meeting = meeting
        self._planning = planning
        # Cells and whoever explains a step ask for the same placement; readers ahead for the next.
        self.placement = lru_cache(maxsize=4)(self._place)
        self._said = False

    def cells(self, step: int, policy: Policy) -> list[Cell]:
        """Return this rank's micro-batches of a step; they are planned when first asked."""
        placement = self.placement(step, policy)
        self._say(placement, policy)
        return [
            self._cell(step, micro_batch, placement, policy)
            for micro_batch in range(len(placement.slots))
        ]

    def _place(self, step: int, policy: Policy) -> StepPlacement:
        shape = self._pools.shape
        if not policy.pooling:
            return place_in_order(self._drawing.global_batch, shape)
        segments, offsets = self._drawing.draw(step)
        ticks = policy.tile_cost.price(0, segments.lengths)
        # Differences of running sums, since an empty sequence has nothing to reduce.
        costs = np.diff(np.concatenate(([0], np.cumsum(ticks)))[offsets])
        return place_step(
            costs,
            shape,
            meeting=self._meeting,
            speeds_permille=self._all_speeds(policy),
            heads_even=self._heads.even,
            tolerance_permille=policy.tolerance_permille,
        )

    def _cell(self, step: int, micro_batch: int, placement: StepPlacement, policy: Policy) -> Cell:
        dp_rank = self._pools.dp_rank
        groups = placement.cell(micro_batch, dp_rank)
        place = dp_rank - groups.start
        segments, offsets = self._drawing.draw(step)
        members = [
            segments.take(slice(int(offsets[index]), int(offsets[index + 1])))
            for index in placement.slots[micro_batch, groups.start : groups.stop].tolist()
        ]
        nodes = self._pools.of(len(groups))
        return Cell(
            segments=members[place],
            lengths=tuple(member.lengths for member in members),
            place=place,
            tokens=self._tokens,
            heads=self._heads,
            cp_rank=self._pools.cp_rank,
            cost=policy.tile_cost,
            settings=replace(
                self._planning,
                pooling=placement.pooling,
                tolerance_permille=policy.tolerance_permille,
                min_gain_permille=policy.min_gain_permille,
                waves=policy.waves or self._planning.waves,
            ),
            speeds_permille=self._speeds(policy, groups),
            nodes=tuple(nodes.plane_nodes if self._heads.even else nodes.pool_nodes),
            step=step,
            micro_batch=micro_batch,
            policy_version=policy.version,
            policy_checksum=policy.checksum,
            # Where ranks need not meet before the step's end, comparing plans would make them.
            alone=self._meeting == "step" and not placement.pooling,
        )

    def _all_speeds(self, policy: Policy) -> tuple[int, ...]:
        """Return the policy's speeds of all ranks; none after a change of size."""
        shape, speeds = self._pools.shape, policy.speeds_permille
        return speeds if len(speeds) == shape.dp * shape.cp else ()

    def _speeds(self, policy: Policy, groups: range) -> tuple[int, ...]:
        """Return the speeds of the ranks that exchange tiles."""
        cp, speeds = self._pools.shape.cp, self._all_speeds(policy)
        cp_ranks = [self._pools.cp_rank] if self._heads.even else range(cp)
        return tuple(
            speeds[dp_rank * cp + cp_rank] for dp_rank in groups for cp_rank in cp_ranks if speeds
        )

    def _say(self, placement: StepPlacement, policy: Policy) -> None:
        """Say once for the whole job that pools have nothing to do."""
        if not self._said and policy.pooling and not placement.pooling:
            self._said = True
            if self._pools.dp_rank == self._pools.cp_rank == 0:
                logger.info("Placement alone evens the steps: %s", placement.says)
