"""Medians, and what they tell of a spread: a few wild values move neither.

The *spread* is the robust standard deviation of values around their median.

Shapes: S steps, W ranks.
"""

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# A normal distribution's standard deviation over its median absolute deviation.
SIGMA_PER_MAD = 1.4826
# The standard error of a median over that of a mean.
MEDIAN_ERROR = 1.2533


def lower_median(values: Float64) -> float:
    """Return the middle value, the lower of two: of two ranks, the faster is the typical one.

    1.0 where there are no values.
    """
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle]) if len(values) else 1.0


def column_medians(values: Float64) -> Float64:
    """Return [W]: the medians of columns [S, W] without NaN; NaN where nothing else is."""
    count = np.isfinite(values).sum(axis=0)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    # NaN sorts last.
    ordered = np.sort(values, axis=0)
    last = np.maximum(count, 1)
    columns = np.arange(values.shape[1])
    both = ordered[(last - 1) // 2, columns] + ordered[last // 2, columns]
    return np.asarray(np.where(count > 0, both / 2, np.nan), dtype=np.float64)


def spread(distances: Float64) -> float:
    """Return the spread of values, of any shape, whose distances from the typical one are given."""
    return SIGMA_PER_MAD * float(np.median(np.abs(distances)))
