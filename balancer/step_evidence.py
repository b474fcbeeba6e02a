"""What is known of one step when its seconds are accounted for.

Shapes: W ranks; M micro-batches.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEvidence:
    """What is known of one step.

    Attributes:
        measured: [W] kernel seconds.
        waits: [W] seconds of exposed exchange.
        step_seconds: its duration.
        mismatches: cells that ran at home because ranks disagreed, summed over ranks.
        work: [W] predicted kernel seconds at nominal speed; None before a fit.
        home: [W] the same under plain Ulysses, in any unit.
        home_shares: [W, M] of a rank's work at home, by micro-batch; M is 0 where unknown.
        at_home: no tile moved, so ``home_shares`` are those of ``work`` too.
        planned_speeds: [W] speeds that the plan counted on.
    """

    measured: Float64
    waits: Float64
    step_seconds: float
    mismatches: int
    work: Float64 | None
    home: Float64 | None
    home_shares: Float64
    at_home: bool
    planned_speeds: Float64


def only_ranks(step: StepEvidence, kept: NDArray[np.bool_]) -> StepEvidence:
    """Return a step of the ranks that ``kept`` [W] names alone."""
    return replace(
        step,
        measured=step.measured[kept],
        waits=step.waits[kept],
        work=None if step.work is None else step.work[kept],
        home=None if step.home is None else step.home[kept],
        home_shares=step.home_shares[kept],
        planned_speeds=step.planned_speeds[kept],
    )
