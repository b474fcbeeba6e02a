"""What balance would save, and how far two cost models disagree about a job's ranks.

Shapes: S steps, W ranks, F = 6 features; home features are those under plain Ulysses.
"""

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def predicted_gain(
    home_features: Float64, coefficients: Float64, speeds: Float64 | None = None
) -> float:
    """Return the share of the slowest rank's kernel seconds that perfect balance would save.

    The mean over steps of 1 - balanced / slowest; [S, W, F] features, [F], [W] speeds.
    """
    seconds = home_features @ coefficients
    if not seconds.size:
        return 0.0
    speeds = np.ones(seconds.shape[1]) if speeds is None else speeds
    slowest = (seconds / speeds).max(axis=1)
    balanced = seconds.sum(axis=1) / speeds.sum()
    shares = np.divide(balanced, slowest, out=np.ones_like(slowest), where=slowest > 0)
    # Rounding alone can put the mean above the maximum.
    return max(0.0, float(1.0 - shares.mean()))


def shape_change(home_features: Float64, new: Float64, old: Float64) -> float:
    """Return how far two models disagree on who is slow: the median over steps of the largest
    relative difference of a rank's predicted cost, after a common factor is taken out.
    """
    now, before = home_features @ new, home_features @ old
    totals = now.sum(axis=1) * before.sum(axis=1)
    now, before = now[totals > 0], before[totals > 0]
    if not now.size:
        return 0.0
    scaled = before * (now.sum(axis=1) / before.sum(axis=1))[:, None]
    larger = np.maximum(now, scaled)
    apart = np.divide(abs(now - scaled), larger, out=np.zeros_like(now), where=larger > 0)
    return float(np.median(apart.max(axis=1)))
