"""May a rank's figures be believed? Its peers' clocks and its own past decide.

Pure. Ranks step in lockstep, so what a slow rank needs longer shows in how long every peer's step
took. Four checks, none of which an honest rank fails:

- it cannot compute for longer than its peers' step lasted (``impossible``);
- no clock reads the same seconds again and again, while its peers' do not (``repeated``);
- its seconds follow from its work as its peers' do, at whatever pace (``scattered``);
- when it says that its pace is another, its peers' steps must say so too (``contradicted``).

Limits. Two ranks have no majority: where they contradict each other on how long a step lasted, the
one that claims more kernel seconds than the other's step is doubted. A constant claim that began
before the first step, on data that are even, contradicts nothing, and is believed. So is one of
a rank that no peer waits for; to act on it costs nothing that a measured effect would not show.

Shapes: S steps, W ranks, C ranks with a claim.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra.balancer.medians import lower_median

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Int64 = NDArray[np.int64]

# Clocks of different ranks, and where a step begins, differ by less.
_SLACK = 1.05
# Scatter of log seconds around the work: so much, and so many times the typical rank's.
_MIN_SCATTER, _MAX_RATIO = 0.25, 4.0
_MIN_SCATTER_STEPS = 12
# One account of the peers' steps is better when it leaves at most this share of the other's
# scatter unexplained; it takes so many steps.
_BETTER = 0.7
_MIN_STEPS = 8


def peers_seconds(durations: Float64) -> Float64:
    """Return [..., W]: how long each rank's peers say that the step took, of durations [..., W]."""
    if durations.shape[-1] == 2:
        return np.asarray(durations[..., ::-1], dtype=np.float64)
    middle = np.median(durations, axis=-1, keepdims=True)
    return np.asarray(np.broadcast_to(middle, durations.shape), dtype=np.float64)


def impossible(kernel: Float64, durations: Float64) -> Bools:
    """Return [..., W]: whose kernel seconds exceed the step's duration, as its peers read it.

    A step whose duration nobody tells rules nothing out.
    """
    peers = peers_seconds(durations)
    return np.asarray((kernel > _SLACK * peers) & (peers > 0), dtype=np.bool_)


def repeated(kernel: Float64, earlier: Sequence[Float64]) -> Bools:
    """Return [W]: whose kernel seconds [W] are to the bit those of one of the ``earlier`` steps.

    Nobody where most are: then it is the clock, or there is nothing to measure.
    """
    again = np.zeros(len(kernel), dtype=np.bool_)
    for past in earlier:
        again |= past == kernel
    again &= kernel > 0
    return np.asarray(again & bool(2 * again.sum() <= len(again)), dtype=np.bool_)


def scattered(scatters: Float64, counts: Int64) -> Bools:
    """Return [W]: who scatters far more than the typical rank, of scatters [W] over counts [W]
    steps; NaN is unknown.
    """
    known = np.isfinite(scatters) & (counts >= _MIN_SCATTER_STEPS)
    if known.sum() < 2:
        return np.zeros(len(scatters), dtype=np.bool_)
    limit = max(_MIN_SCATTER, _MAX_RATIO * lower_median(scatters[known]))
    return np.asarray(known & (np.nan_to_num(scatters) > limit), dtype=np.bool_)


def contradicted(
    kernel: Float64, nominal: Float64, durations: Float64, claims: Int64
) -> tuple[Bools, Bools]:
    """Return [C], [C]: which claims their peers' steps speak against, and for.

    The peers' steps should last as long as the slowest rank computes, and what else there is.
    Once the slowest rank is taken with the claim, once with the claimant at its nominal pace:
    the account that leaves less of the steps' scatter unexplained is the better one.

    Args:
        kernel: [S, W] seconds as reported, of doubted ranks as predicted.
        nominal: [S, W] seconds as predicted for the typical pace.
        durations: [S, W] seconds of the step, as each rank read them.
        claims: [C] ranks.
    """
    if len(kernel) < _MIN_STEPS:
        none = np.zeros(len(claims), dtype=np.bool_)
        return none, none
    others = _slowest_others(kernel)[:, claims]
    peers = peers_seconds(durations)[:, claims]
    with_claim = _unexplained(peers - np.maximum(others, kernel[:, claims]))
    without = _unexplained(peers - np.maximum(others, nominal[:, claims]))
    against = without < _BETTER * with_claim
    agreed = with_claim < _BETTER * without
    return np.asarray(against, dtype=np.bool_), np.asarray(agreed, dtype=np.bool_)


def _slowest_others(kernel: Float64) -> Float64:
    """Return [S, W]: the most seconds of any rank but this one."""
    if kernel.shape[1] < 2:
        return np.zeros_like(kernel)
    ordered = np.partition(kernel, -2, axis=1)
    first, second = ordered[:, -1:], ordered[:, -2:-1]
    # Of two slowest ranks with equal seconds each has the other.
    return np.where(kernel == first, second, first)


def _unexplained(seconds: Float64) -> Float64:
    """Return [C]: mean distance from the median of seconds [S, C]."""
    return np.asarray(np.abs(seconds - np.median(seconds, axis=0)).mean(axis=0), dtype=np.float64)
