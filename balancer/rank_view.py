"""What the API shows of one rank: where it runs, and its course over the newest steps.

Shapes: S steps.
"""

from collections.abc import Sequence

import numpy as np

from libra.balancer import views
from libra.balancer.events import View
from libra.balancer.state import JobSettings, JobState
from libra.balancer.step_record import StepRecord


def rank_view(
    records: Sequence[StepRecord], state: JobState, settings: JobSettings, rank: int
) -> View:
    """Return a rank's row and its figures by step; raise ``LookupError`` for an unknown rank.

    ``pace`` is measured over predicted seconds, over the median of that ratio among the ranks:
    above 1 the rank is slower than its work explains. Only the newest steps keep predictions.
    """
    row = next((own for own in views.rank_rows(state, settings) if own["rank"] == rank), None)
    if row is None:
        raise LookupError(f"no rank {rank} of this attempt has reported")
    records = [r for r in records if len(r.kernel_seconds) > rank]
    return {
        **row,
        "steps": [r.step for r in records],
        "slowdown": [round(float(r.slowdown[rank]), 4) for r in records],
        "measured_seconds": [float(r.kernel_seconds[rank]) for r in records],
        "predicted_by_step": [
            None if r.predicted_seconds is None else float(r.predicted_seconds[rank])
            for r in records
        ],
        "pace": [_pace(r, rank) for r in records],
        "missing": [rank in r.missing for r in records],
    }


def _pace(record: StepRecord, rank: int) -> float | None:
    predicted = record.predicted_seconds
    if predicted is None or not predicted[rank] > 0:
        return None
    told = predicted > 0
    typical = float(np.median(record.kernel_seconds[told] / predicted[told]))
    return float(record.kernel_seconds[rank] / predicted[rank] / typical) if typical > 0 else None
