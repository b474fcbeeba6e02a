"""The one object that travels with a batch: what each rank of a cell must know to attend.

Shapes: P sequences in the cell (one per CP group), F = 4 features.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.lowering import LoweredPlan

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
        digest: 63-bit digest of everything the plan was made from, equal on all ranks.
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
