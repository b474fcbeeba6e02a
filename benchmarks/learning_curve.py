"""How many observations a cost model needs before its error stays small. Pure.

Shapes: n tiles; N passes; F features; 2 directions, forward and backward, a model each.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.model_errors import errors
from libra.balancer.model import QuadraticCostModel

Float64 = NDArray[np.float64]


def observations_needed(
    features: Float64, seconds: Float64, *, most: int, within: float, seed: int
) -> int | None:
    """Return after how many single calls the model's error stays ``within``, from nothing.

    Half of the tiles, drawn at random, are learned from in random order, one call of one pass at
    a time; the error is that of the other half's medians over passes, cost-weighted, forward and
    backward together. The model is as the product makes it, prior included.

    Args:
        features: [n, F].
        seconds: [N, n, 2].
        most: observations to give it at most.
        within: error that counts as small.
        seed: of the order and the halves.

    Returns:
        None if the last error is larger.
    """
    rng = np.random.default_rng(seed)
    passes, number, directions = seconds.shape
    drawn = rng.permutation(number)
    known, asked = drawn[: number // 2], drawn[number // 2 :]
    truth = np.median(seconds[:, asked], axis=0).sum(axis=1)
    calls = rng.permutation(passes * len(known))[:most]
    models = [QuadraticCostModel() for _ in range(directions)]
    small = []
    for turn, tile in zip(calls // len(known), known[calls % len(known)], strict=True):
        for direction, model in enumerate(models):
            model.partial_fit(features[[tile]], seconds[[turn], [tile], direction])
        predicted = np.sum([model.predict(features[asked]) for model in models], axis=0)
        small.append(errors(truth, predicted)["cost_weighted_error"] <= within)
    return stays_from(small)


def stays_from(small: Sequence[bool]) -> int | None:
    """Return after how many observations all is small, None if the last is not."""
    large = np.flatnonzero(~np.asarray(small, dtype=bool))
    first = int(large[-1]) + 2 if len(large) else 1
    return first if first <= len(small) else None


def quantile(needed: Sequence[int | None], share: float) -> int | None:
    """Return in how many observations this share of the orders was done, None if it was not."""
    ranked = sorted(np.inf if own is None else own for own in needed)
    found = ranked[int(np.ceil(share * len(ranked))) - 1]
    return None if np.isinf(found) else int(found)
