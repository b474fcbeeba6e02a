"""What one rank's CP group holds in one micro-batch, and all that its plan is made from.

A cell travels from the sampler to a loader's worker, which plans it there: nothing in it belongs
to the process that drew it, and until it is planned it is small.

Shapes: P sequences of the cell; S_p documents in sequence p.
"""

from dataclasses import dataclass, field
from functools import cached_property

from libra.attention.cost import FLOPS_COST, TileCost
from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.tiles import Int64
from libra.balancer.packing import Segments


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One micro-batch of one rank, planned on first use of its layout.

    Attributes:
        segments: token ranges of documents in this rank's own sequence; none is all padding.
        lengths: P arrays [S_p] of document lengths of the cell's sequences.
        place: index of this rank's own sequence, 0..P-1.
        tokens: of every sequence, padding included.
        heads, cp_rank, cost, settings, speeds_permille, nodes, alone: as ``make_layout`` takes
            them.
        step: optimizer step, counted over epochs; ``micro_batch``: within the step.
        policy_version, policy_checksum: of the policy that it is planned under.
    """

    segments: Segments
    lengths: tuple[Int64, ...]
    place: int
    tokens: int
    heads: HeadSplit
    cp_rank: int = 0
    cost: TileCost = FLOPS_COST
    settings: PlanSettings = field(default_factory=PlanSettings)
    speeds_permille: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    step: int = 0
    micro_batch: int = 0
    policy_version: int = 0
    policy_checksum: str = ""
    alone: bool = False

    @cached_property
    def layout(self) -> BatchLayout:
        """The layout that travels with the batch; planned once, in the process that asks first."""
        return make_layout(
            self.lengths,
            self.place,
            tokens=self.tokens,
            heads=self.heads,
            cp_rank=self.cp_rank,
            cost=self.cost,
            settings=self.settings,
            speeds_permille=self.speeds_permille,
            nodes=self.nodes,
            step=self.step,
            micro_batch=self.micro_batch,
            policy_version=self.policy_version,
            policy_checksum=self.policy_checksum,
            alone=self.alone,
        )
