"""The one object that travels with a batch: what each rank of a cell must know to attend.

Shapes: P sequences in the cell (one per CP group); C ranks of a CP group; T_p tokens of sequence
p, padding included; t rows of a rank's shard of its sequence.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.attention.cost import FLOPS_COST, TileCost, tile_features
from libra.attention.heads import HeadSplit
from libra.attention.lowering import LoweredPlan, lower
from libra.attention.plan import Limit, PlanSettings, balanced_plan, home_plan
from libra.attention.shape import token_range
from libra.attention.tiles import Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """One rank's view of one cell: a (micro-batch, pool) of one optimizer step.

    Attributes:
        step: optimizer step that the batch belongs to.
        micro_batch: index of the cell's micro-batch within the step.
        policy_version: version of the policy that the plan was made under.
        policy_checksum: its checksum.
        tokens: tokens of this rank's own packed sequence, padding included.
        lengths: document lengths of the cell's P sequences, in order.
        place: index of this rank's own sequence, 0..P-1.
        cp_rank: index of this rank in its CP group, 0..C-1.
        heads: the split of heads that the plan was made for.
        plan: this rank's part of the plan that the policy asks for.
        home_plan: this rank's part of plain Ulysses; the same object when nothing moves.
        limit: what kept the plan from being more even.
        alone: whether the CP group runs the cell without its pool: nothing moves, and it waits
            for no other to compare plans.
        digest: 63-bit digest of the cell and all its plan was made from, equal on all ranks.
    """

    step: int
    micro_batch: int
    policy_version: int
    policy_checksum: str
    tokens: int
    lengths: tuple[Int64, ...]
    place: int
    cp_rank: int
    heads: HeadSplit
    plan: LoweredPlan
    home_plan: LoweredPlan
    limit: Limit
    alone: bool
    digest: int

    @property
    def document_lengths(self) -> Int64:
        """Lengths of the documents of this rank's own sequence."""
        return self.lengths[self.place]

    @property
    def home_features(self) -> NDArray[np.float64]:
        """[F] features of this rank's work under plain Ulysses.

        For one kv head where ranks of a CP group carry equally many query heads; elsewhere in
        proportion to this rank's.
        """
        begin, end = self.heads.query_range(self.cp_rank)
        share = (end - begin) * self.heads.cp / self.heads.query_heads
        return np.asarray(tile_features(0, self.document_lengths).sum(axis=0) * share)

    @property
    def shard(self) -> slice:
        """Tokens of its sequence that this rank holds outside attention."""
        return slice(*token_range(self.tokens, self.cp_rank, self.heads.cp))

    @property
    def position_ids(self) -> Int64:
        """[t] positions of this rank's shard, counted from the start of each document."""
        lengths = self.document_lengths
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = np.zeros(self.tokens, dtype=np.int64)
        positions[: len(starts)] = np.arange(len(starts)) - starts
        return positions[self.shard]

    @property
    def label_mask(self) -> NDArray[np.bool_]:
        """[t] whether each token of the shard has a next token of its document to predict."""
        ends = np.cumsum(self.document_lengths)
        mask = np.arange(self.tokens) < (ends[-1] if len(ends) else 0)
        mask[ends - 1] = False
        return mask[self.shard]


def make_layout(
    lengths: Sequence[ArrayLike],
    place: int,
    *,
    tokens: int | Sequence[int],
    heads: HeadSplit,
    cp_rank: int = 0,
    cost: TileCost = FLOPS_COST,
    settings: PlanSettings | None = None,
    speeds_permille: Sequence[int] = (),
    nodes: Sequence[int] = (),
    step: int = 0,
    micro_batch: int = 0,
    policy_version: int = 0,
    policy_checksum: str = "",
    alone: bool = False,
) -> BatchLayout:
    """Plan a cell and return the layout of one rank of the CP group at ``place``.

    Args:
        lengths: P arrays of document lengths; what a sequence lacks to its tokens is padding.
        place, cp_rank: indices of this rank's own sequence, 0..P-1, and in its CP group, 0..C-1.
        tokens: of every packed sequence, or one number for each.
        heads: the model's heads and C.
        cost, settings, speeds_permille, nodes: as ``plan_cell`` takes them.
        alone: whether the pool's CP groups do not wait for each other; only without pooling.

    Raises:
        ValueError: documents longer than their sequence together, a length below 1, a bad place,
            alone with pooling.
    """
    how = settings or PlanSettings()
    cell = tuple(np.ascontiguousarray(part, dtype=np.int64) for part in lengths)
    totals = [tokens] * len(cell) if isinstance(tokens, int) else [int(own) for own in tokens]
    _check(cell, place, totals, heads, cp_rank)
    _check_alone(alone, how)
    inputs = _Inputs(
        lengths=cell,
        heads=heads,
        cp_rank=cp_rank,
        own=place if heads.even else place * heads.cp + cp_rank,
        cost=cost,
        settings=how,
        speeds_permille=tuple(speeds_permille),
        nodes=tuple(nodes),
    )
    plan, lowered_home, limit = _planned(inputs)
    return BatchLayout(
        step=step,
        micro_batch=micro_batch,
        policy_version=policy_version,
        policy_checksum=policy_checksum,
        tokens=totals[place],
        lengths=cell,
        place=place,
        cp_rank=cp_rank,
        heads=heads,
        plan=plan,
        home_plan=lowered_home,
        limit=limit,
        alone=alone,
        digest=inputs.digest(step, micro_batch, policy_checksum, totals),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inputs:
    """All that a rank's part of a plan follows from; equal inputs have equal keys."""

    lengths: tuple[Int64, ...]
    heads: HeadSplit
    cp_rank: int
    own: int
    cost: TileCost
    settings: PlanSettings
    speeds_permille: tuple[int, ...]
    nodes: tuple[int, ...]

    @cached_property
    def key(self) -> tuple[object, ...]:
        rest = (self.heads, self.cp_rank, self.own, self.cost, self.settings)
        cells = tuple(part.tobytes() for part in self.lengths)
        return (cells, *rest, self.speeds_permille, self.nodes)

    def digest(self, *more: object) -> int:
        """Return a positive 63-bit digest that is equal on all ranks that share the plan."""
        shared = (self.heads, self.cost, self.settings, self.speeds_permille, self.nodes)
        state = hashlib.blake2b(digest_size=8)
        state.update(repr(([len(part) for part in self.lengths], shared, more)).encode())
        for part in self.lengths:
            state.update(part.astype("<i8").tobytes())
        return int.from_bytes(state.digest(), "little") >> 1

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inputs) and self.key == other.key


@lru_cache(maxsize=64)
def _planned(inputs: _Inputs) -> tuple[LoweredPlan, LoweredPlan, Limit]:
    """Return a rank's part of the plan and of plain Ulysses; evaluation sets come again."""
    home = home_plan(inputs.lengths, inputs.heads, inputs.cost, cp_rank=inputs.cp_rank)
    plan = balanced_plan(
        home,
        inputs.cost,
        inputs.settings,
        speeds_permille=inputs.speeds_permille,
        nodes=inputs.nodes,
    )
    lowered = lower(home, inputs.own)
    return (lower(plan, inputs.own) if len(plan.moves) else lowered), lowered, plan.limit


def _check_alone(alone: bool, settings: PlanSettings) -> None:
    if alone and settings.pooling:
        raise ValueError("alone=True: must be with settings.pooling=False, since tiles would move")


def _check(
    cell: tuple[Int64, ...], place: int, totals: list[int], heads: HeadSplit, cp_rank: int
) -> None:
    if not 0 <= place < len(cell):
        raise ValueError(f"place={place}: must be in 0..{len(cell) - 1}")
    if not 0 <= cp_rank < heads.cp:
        raise ValueError(f"cp_rank={cp_rank}: must be in 0..{heads.cp - 1}")
    if len(totals) != len(cell):
        raise ValueError(f"tokens={totals}: must be one number, or one for each sequence")
    for index, (part, tokens) in enumerate(zip(cell, totals, strict=True)):
        if part.ndim != 1:
            raise ValueError(f"lengths[{index}] has shape {part.shape}: must be one-dimensional")
        if part.sum() > tokens:
            raise ValueError(
                f"lengths[{index}] sums to {part.sum()}: must be at most tokens={tokens}"
            )
