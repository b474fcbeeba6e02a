"""One cost model held still, and whether a rank keeps the pace that it expects.

Shapes: W ranks; K kernel kinds; F = 6 features; n steps.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.medians import spread
from libra.balancer.step_record import StepRecord, price_actual

Float64 = NDArray[np.float64]

# Standard errors by which a rank must have moved, however many ranks there are to look at.
_MIN_ERRORS = 5.0


class Prices(msgspec.Struct, eq=False, kw_only=True):
    """One cost model: seconds per feature [K, F] by kind, and [F] of a tile, both directions."""

    kinds: list[KernelKind]
    per_kind: Float64
    tile: Float64

    def actual(self, record: StepRecord) -> Float64 | None:
        """Return predicted kernel seconds [W] of what ranks computed; None for a new kind."""
        features = record.features
        if features is None or not set(features.kinds) <= set(self.kinds):
            return None
        rows = [self.kinds.index(kind) for kind in features.kinds]
        return price_actual(features, self.per_kind[rows])


def pace_table(records: Sequence[StepRecord], prices: Prices) -> Float64:
    """Return [n, W] log of measured over predicted seconds, against each step's typical rank.

    A rank without kernels in a step counts as typical there.
    """
    rows = []
    for record in records:
        predicted = prices.actual(record)
        if predicted is None:
            continue
        told = (predicted > 0) & (record.kernel_seconds > 0)
        if told.any():
            ratios = np.zeros(len(predicted))
            ratios[told] = np.log(record.kernel_seconds[told] / predicted[told])
            ratios[told] -= np.median(ratios[told])
            rows.append(ratios)
    return np.array(rows)


def changed_rank(table: Float64, paces: Float64, min_change: float) -> tuple[int, float] | None:
    """Return the rank whose pace [n, W] left ``paces`` [W] furthest, and by what factor.

    None unless it did by more than ``min_change`` and by more than the steps scatter.
    """
    if len(table) < 2:
        return None
    # The newest steps: the change may have come after the first of them.
    newest = table[-max(2, len(table) // 2) :]
    middle = np.median(newest, axis=0)
    moved = np.abs(middle - paces)
    scatter = spread(newest - middle)
    rank = int(moved.argmax())
    if moved[rank] <= max(np.log1p(min_change), _MIN_ERRORS * scatter / np.sqrt(len(newest))):
        return None
    return rank, float(np.exp(moved[rank]))
