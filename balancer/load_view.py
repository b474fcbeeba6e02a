"""How evenly the newest step lay on its pools: as it would have been, as it was, as it could be.

Shapes: W ranks; Q pools.
"""

import numpy as np
from numpy.typing import NDArray

from libra.balancer.events import View
from libra.balancer.sequence_costs import home_seconds
from libra.balancer.state import JobState

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def loads_view(state: JobState) -> View:
    """Return the loads of the newest complete step by pool; empty lists before a model prices one.

    A pool is as slow as its slowest rank: ``home_seconds`` are that rank's under plain Ulysses by
    the model, ``measured_seconds`` what it took. No plan and no placement brings a pool of all
    ranks below ``bound_seconds``, the mean of all work; within a pool of its size the bound is
    ``pool_bound_seconds``, the mean of its own.
    """
    record = next(reversed(state.log.recent()), None)
    if record is None or record.features is None or len(state.ranks) < state.log.world_size:
        return _nothing(None if record is None else record.step)
    home = home_seconds(state, record.features)
    if home is None:
        return _nothing(record.step)
    pools = np.array([state.ranks[rank].pool for rank in range(state.log.world_size)])
    measured = record.kernel_seconds.astype(np.float64)
    names, index = np.unique(pools, return_inverse=True)
    # Predicted and measured seconds differ by the model's error, which is not the plan's.
    home *= _scale(home, measured)
    return {
        "step": record.step,
        "policy_version": record.policy_version,
        "pools": names.tolist(),
        "ranks": np.bincount(index).tolist(),
        "home_seconds": _largest(home, index).tolist(),
        "measured_seconds": _largest(measured, index).tolist(),
        "slowest_rank": _slowest(measured, index).tolist(),
        "pool_bound_seconds": _means(home, index).tolist(),
        "bound_seconds": float(home.mean()),
    }


def _nothing(step: int | None) -> View:
    empty = ("pools", "ranks", "home_seconds", "measured_seconds", "slowest_rank")
    return {
        "step": step,
        "policy_version": None,
        **{name: [] for name in (*empty, "pool_bound_seconds")},
        "bound_seconds": None,
    }


def _scale(predicted: Float64, measured: Float64) -> float:
    total = float(predicted.sum())
    return float(measured.sum()) / total if total > 0 else 1.0


def _largest(seconds: Float64, index: Int64) -> Float64:
    largest = np.zeros(int(index.max()) + 1)
    np.maximum.at(largest, index, seconds)
    return largest


def _slowest(seconds: Float64, index: Int64) -> Int64:
    """Return [Q] the rank of each pool that took longest."""
    order = np.lexsort((seconds, index))
    ends = np.cumsum(np.bincount(index)) - 1
    return np.asarray(order[ends], dtype=np.int64)


def _means(seconds: Float64, index: Int64) -> Float64:
    sums = np.bincount(index, weights=seconds)
    return np.asarray(sums / np.maximum(np.bincount(index), 1))
