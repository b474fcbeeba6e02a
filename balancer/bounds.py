"""How far one policy may go from the last: bounded speeds, and costs blended to a bounded change.

Shapes: S steps, W ranks, F = 6 features; home features are those under plain Ulysses.
"""

import numpy as np
from numpy.typing import NDArray

from libra.balancer.speeds import FASTEST, SLOWEST

Float64 = NDArray[np.float64]

# Halves of the interval: finer than any plan can tell.
_BISECTIONS = 12


def bounded_speeds(wanted: Float64, current: Float64, max_factor: float) -> Float64:
    """Return speeds [W] no further than ``max_factor`` from the current ones."""
    near = np.clip(wanted, current / max_factor, current * max_factor)
    return np.clip(near, SLOWEST, FASTEST)


def bounded_costs(
    home_features: Float64, wanted: Float64, current: Float64, max_factor: float
) -> tuple[Float64, float]:
    """Return costs [F] on the way from the current to the wanted ones, and the share of it gone.

    No rank's share of a step's predicted cost changes by more than ``max_factor`` either way.
    Only the shape of costs matters, so the current ones are brought to the wanted total first.
    """
    now, before = home_features @ wanted, home_features @ current
    if not now.size or before.sum() <= 0 or now.sum() <= 0:
        return wanted, 1.0
    scale = now.sum() / before.sum()
    before = before * scale
    if _factor(now, before) <= max_factor:
        return wanted, 1.0
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        within = _factor(before + middle * (now - before), before) <= max_factor
        low, high = (middle, high) if within else (low, middle)
    return scale * current + low * (wanted - scale * current), low


def speeds_gain(true: Float64, planned: Float64) -> float:
    """Return what plans by the true speeds [W] would save of the slowest rank's kernel seconds."""
    if not true.size:
        return 0.0
    slowest = float((planned / true).max() / planned.sum())
    return max(0.0, 1.0 - 1.0 / (slowest * float(true.sum())))


def _factor(now: Float64, before: Float64) -> float:
    """Return the largest factor by which a rank's share of a step [S, W] differs."""
    busy = (now.sum(axis=1) > 0) & (before.sum(axis=1) > 0)
    now, before = now[busy], before[busy]
    now, before = now / now.sum(axis=1, keepdims=True), before / before.sum(axis=1, keepdims=True)
    told = (now > 0) & (before > 0)
    ratios = now[told] / before[told]
    return float(max(ratios.max(), 1.0 / ratios.min())) if ratios.size else 1.0
