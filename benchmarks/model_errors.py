"""How far a cost model's predictions are from what it has not seen, beside simpler models. Pure.

Shapes: n observations to learn from; m to predict; F columns of features, as
``libra.attention.cost.FEATURES``.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from libra.attention.cost import FEATURES
from libra.balancer.model import QuadraticCostModel

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
# Of features [n, F], seconds [n] and features [m, F]: predicted seconds [m].
Predictor = Callable[[Float64, Float64, Float64], Float64]

_PAIRS = FEATURES.index("causal_pairs")
_OWN_COLUMNS = 4
# Relative to columns of unit size: collinear columns share a coefficient, nothing else changes.
_RIDGE = 1e-9


def errors(seconds: Float64, predicted: Float64) -> dict[str, float]:
    """Return the cost-weighted error, sum |y - p| over sum y, and the mean of |y - p| / y."""
    missed = np.abs(predicted - seconds)
    return {
        "cost_weighted_error": float(missed.sum() / seconds.sum()),
        "mape": float((missed / seconds).mean()),
    }


def held_out(features: Float64, seconds: Float64, folds: Int64, predictor: Predictor) -> Float64:
    """Return [n] predictions, each by a fit to the other folds' observations; folds [n]."""
    predicted = np.zeros(len(seconds))
    for fold in np.unique(folds):
        own = folds == fold
        predicted[own] = predictor(features[~own], seconds[~own], features[own])
    return predicted


def libra(features: Float64, seconds: Float64, asked: Float64) -> Float64:
    """Predict by the product's model, which is told to trust as few observations as there are."""
    model = QuadraticCostModel(min_observations=1).fit(features, seconds)
    return np.asarray(model.predict(asked), dtype=np.float64)


def plain(features: Float64, seconds: Float64, asked: Float64) -> Float64:
    """Predict by relative non-negative least squares on the first four features alone."""
    coefficients = nonnegative(features[:, :_OWN_COLUMNS], seconds, power=1.0)
    return np.asarray(asked[:, :_OWN_COLUMNS] @ coefficients)


def plain_by_cost(features: Float64, seconds: Float64, asked: Float64) -> Float64:
    """As ``plain``, but with the product's weights, one over seconds."""
    coefficients = nonnegative(features[:, :_OWN_COLUMNS], seconds, power=0.5)
    return np.asarray(asked[:, :_OWN_COLUMNS] @ coefficients)


def flops(features: Float64, seconds: Float64, asked: Float64) -> Float64:
    """Predict by causal pairs alone, unweighted: the fit that spoils dear tiles least."""
    return proportional(features[:, [_PAIRS]], seconds, asked[:, [_PAIRS]])


def proportional(column: Float64, seconds: Float64, asked: Float64) -> Float64:
    """Predict by one column [n, 1] and unweighted least squares."""
    return np.asarray(asked @ nonnegative(column, seconds, power=0.0))


def proportional_relative(column: Float64, seconds: Float64, asked: Float64) -> Float64:
    """Predict by one column [n, 1] and relative least squares."""
    return np.asarray(asked @ nonnegative(column, seconds, power=1.0))


def nonnegative(columns: Float64, seconds: Float64, *, power: float) -> Float64:
    """Return c >= 0 that minimises the sum of ((y - c x) / y ** power) ** 2."""
    rows, target = columns / seconds[:, None] ** power, seconds ** (1 - power)
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    size = float(np.linalg.norm(target))
    number = columns.shape[1]
    ridged = np.vstack((rows / scale, np.sqrt(_RIDGE) * np.eye(number)))
    solution, _ = nnls(ridged, np.concatenate((target / size, np.zeros(number))))
    return np.asarray(solution * size / scale, dtype=np.float64)
