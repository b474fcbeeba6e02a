"""Kernel calls of made-up ranks, as a report tells of them.

Shapes: n calls; F = 6 features.
"""

import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.wire import Features, KernelTotals, Point

Float64 = NDArray[np.float64]


def as_features(values: Float64) -> Features:
    """Return a report's features of [F] values."""
    one, two, three, four, five, six = values.tolist()
    return one, two, three, four, five, six


def as_points(features: Float64, seconds: Float64) -> list[Point]:
    """Return raw points of calls of features [n, F] and seconds [n]."""
    rows = zip(features, seconds.tolist(), strict=True)
    return [(*as_features(values), value) for values, value in rows]


def kernel_totals(kind: KernelKind, features: Float64, seconds: Float64) -> KernelTotals:
    """Return a step's totals of calls of features [n, F] and seconds [n]."""
    total = as_features(features.sum(axis=0))
    return KernelTotals(kind=kind, features=total, seconds=float(seconds.sum()))
