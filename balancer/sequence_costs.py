"""What the sequences of a job's recent steps cost at home, as its ranks report it.

Shapes: S steps; W ranks; B micro-batches; G CP groups.
"""

import numpy as np
from numpy.typing import NDArray

from libra.balancer.observed import rank_doubts
from libra.balancer.state import JobState
from libra.balancer.step_record import StepFeatures, price_actual

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def sequence_seconds(state: JobState) -> list[Float64]:
    """Return [B, G] kernel seconds a rank of each CP group's sequences in each recent step.

    Empty before there is a model. A rank that is not believed speaks for no group.
    """
    groups = _groups(state)
    believed = np.ones(state.log.world_size, dtype=bool)
    believed[list(rank_doubts(state))] = False
    pooled = {e.policy.version for e in state.policies if e.policy.pooling}
    steps = []
    for record in state.log.recent():
        seconds = None if record.features is None else home_seconds(state, record.features)
        if groups is None or seconds is None or record.features is None:
            continue
        split = seconds[:, None] * _shares(record.features.home_pairs)
        step = _by_group(split, groups, believed)
        if record.policy_version in pooled:
            # Placed already: plain Ulysses would meet them in the order of drawing.
            drawn = np.random.default_rng(record.step).permutation(step.ravel())
            step = drawn.reshape(step.shape)
        steps.append(step)
    return steps


def sent_bytes_per_second(state: JobState) -> float | None:
    """Return the bytes that moving a second of kernel work sends; None where nothing moved."""
    sent = moved = 0.0
    for record in state.log.recent():
        features = record.features
        home = None if features is None else home_seconds(state, features)
        coefficients = None if features is None else state.fits.coefficients(features.kinds)
        if features is not None and home is not None and coefficients is not None:
            moved += float(np.maximum(0.0, home - price_actual(features, coefficients)).sum())
            sent += record.sent_bytes
    return sent / moved if sent > 0 and moved > 0 else None


def other_seconds(state: JobState) -> float | None:
    """Return what a recent step takes beyond its slowest rank's kernels and waits, on average."""
    recent = state.log.recent()
    if not recent:
        return None
    rest = [r.step_seconds - float(r.believed_seconds.max()) - r.wait_seconds for r in recent]
    return max(0.0, float(np.mean(rest)))


def home_seconds(state: JobState, features: StepFeatures) -> Float64 | None:
    """Return [W] predicted seconds at home: home features are of one layer and direction."""
    per_kind = state.fits.coefficients(features.kinds)
    tile = state.fits.tile_coefficients()
    if per_kind is None or tile is None:
        return None
    home = features.home @ tile
    total = float(home.sum())
    scale = float(price_actual(features, per_kind).sum()) / total if total > 0 else 0.0
    return np.asarray(home * scale, dtype=np.float64) if total > 0 else None


def _groups(state: JobState) -> Int64 | None:
    """Return [W] the CP group of each rank, counted from 0; None until all are known."""
    if len(state.ranks) < state.log.world_size:
        return None
    places = [state.ranks[rank].dp for rank in range(state.log.world_size)]
    return np.unique(places, return_inverse=True)[1].astype(np.int64)


def _shares(pairs: Float64) -> Float64:
    """Return [W, B] shares of a rank's work; all of it in one micro-batch if not told."""
    if pairs.shape[1] == 0:
        return np.ones((len(pairs), 1))
    totals = pairs.sum(axis=1, keepdims=True)
    shares: Float64 = np.full_like(pairs, 1 / pairs.shape[1])
    np.divide(pairs, totals, out=shares, where=totals > 0)
    return shares


def _by_group(seconds: Float64, groups: Int64, believed: NDArray[np.bool_]) -> Float64:
    """Return [B, G], the mean believed rank of each CP group; of a group without any, the job's."""
    count = int(groups.max()) + 1
    known = np.bincount(groups[believed], minlength=count)
    sums = np.zeros((count, seconds.shape[1]))
    np.add.at(sums, groups[believed], seconds[believed])
    typical = seconds[believed].mean(axis=0) if believed.any() else np.zeros(seconds.shape[1])
    means = np.where(known[:, None] > 0, sums / np.maximum(known, 1)[:, None], typical)
    return np.ascontiguousarray(means.T)
