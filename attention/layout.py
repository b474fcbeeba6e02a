"""The one object that travels with a batch: what each rank of a cell must know to attend.

Shapes: P sequences in the cell (one per CP group), F = 4 features.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import TileCost
from libra.attention.lowering import LoweredPlan, lower
from libra.attention.plan import PlanSettings, plan_cell

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """One rank's view of one cell: a (micro-batch, pool) of one optimizer step.

    Attributes:
        step: optimizer step that the batch belongs to.
        micro_batch: index of the cell's micro-batch within the step.
        policy_version: version of the policy that the plan was made under.
        policy_checksum: its checksum.
        tokens: tokens of every packed sequence, padding included.
        lengths: document lengths of the cell's P sequences, in order, each at most ``tokens``.
        place: index of this rank's own sequence, 0..P-1.
        plan: this rank's part of the plan that the policy asks for.
        home_plan: this rank's part of plain Ulysses; the same object when nothing moves.
        digest: 63-bit digest of the cell and all its plan was made from, equal on all ranks.
    """

    step: int
    micro_batch: int
    policy_version: int
    policy_checksum: str
    tokens: int
    lengths: tuple[Int64, ...]
    place: int
    plan: LoweredPlan
    home_plan: LoweredPlan
    digest: int

    @property
    def document_lengths(self) -> Int64:
        """Lengths of the documents of this rank's own sequence."""
        return self.lengths[self.place]


def make_layout(
    lengths: Sequence[Int64],
    place: int,
    *,
    tokens: int,
    cost: TileCost,
    settings: PlanSettings,
    speeds_permille: Sequence[int] = (),
    step: int = 0,
    micro_batch: int = 0,
    policy_version: int = 0,
    policy_checksum: str = "",
) -> BatchLayout:
    """Plan a cell and return the layout of the rank that holds the sequence at ``place``.

    Args:
        lengths: P arrays of document lengths; what a sequence lacks to ``tokens`` is padding.
        place: index of this rank's own sequence, 0..P-1.
        tokens: tokens of every packed sequence.

    Raises:
        ValueError: documents longer than a sequence together, a length below 1, a bad place.
    """
    cell = tuple(np.ascontiguousarray(part, dtype=np.int64) for part in lengths)
    if not 0 <= place < len(cell):
        raise ValueError(f"place={place}: must be in 0..{len(cell) - 1}")
    for index, part in enumerate(cell):
        if part.sum() > tokens:
            raise ValueError(
                f"lengths[{index}] sums to {part.sum()}: must be at most tokens={tokens}"
            )
    home = lower(plan_cell(cell, cost, replace(settings, pooling=False)), place)
    plan = lower(plan_cell(cell, cost, settings, speeds_permille), place)
    return BatchLayout(
        step=step,
        micro_batch=micro_batch,
        policy_version=policy_version,
        policy_checksum=policy_checksum,
        tokens=tokens,
        lengths=cell,
        place=place,
        plan=plan if plan.moved else home,
        home_plan=home,
        digest=_digest(
            cell,
            (step, micro_batch, policy_checksum),
            (tokens, cost, settings, tuple(speeds_permille)),
        ),
    )


def _digest(cell: tuple[Int64, ...], *inputs: object) -> int:
    """Return a positive 63-bit digest of a cell, its place in training and its plan's inputs."""
    state = hashlib.blake2b(digest_size=8)
    state.update(repr(([len(part) for part in cell], inputs)).encode())
    for part in cell:
        state.update(part.astype("<i8").tobytes())
    return int.from_bytes(state.digest(), "little") >> 1
