"""The cost model: a non-negative combination of a kernel call's features, fitted online.

It keeps ``Moments`` only, so it is constant in size and the fit does not depend on how
observations were split over calls, ranks and reports. As long as no tile is cut, a tile's query
and key tokens are equal and their columns collinear: a ridge far below the noise then shares
the coefficient evenly, which makes the answer unique.

Shapes: F = 4 features, in the order of ``libra.attention.cost.FEATURES``; n observations.
"""

from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from sklearn.base import BaseEstimator, RegressorMixin

from libra.attention.cost import FEATURES
from libra.balancer.moments import NUM_FEATURES, Moments

Float64 = NDArray[np.float64]

# Relative to a gram matrix of unit diagonal: above rounding (1e-15), far below any noise.
_RIDGE = 1e-9
# Every FLOPs model has cost proportional to causal pairs; this is a modest core's pace.
PRIOR_SECONDS_PER_PAIR = 1e-9


class QuadraticCostModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predict kernel seconds from tile features; a scikit-learn regressor that learns online.

    Until it has ``min_observations`` it answers with the prior: cost proportional to causal
    pairs at the throughput seen so far. ``source_`` says which of the two is speaking.

    Args:
        min_observations: from here on the fit is trusted.
        half_life_steps: ``forget`` of this many steps halves the weight of what is known.
    """

    def __init__(self, *, min_observations: int = 40, half_life_steps: float = 200.0) -> None:
        self.min_observations = min_observations
        self.half_life_steps = half_life_steps
        # Not hyperparameters: what was learned, empty in a clone.
        self.moments_ = Moments()
        self.num_observations_ = 0
        self._coefficients: Float64 | None = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Start over from these observations: X [n, F], y [n] seconds."""
        self.moments_ = Moments()
        self.num_observations_ = 0
        return self.partial_fit(X, y)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Learn from more observations: X [n, F], y [n] seconds."""
        features, seconds = _checked(X), np.asarray(y, dtype=np.float64)
        if seconds.shape != features.shape[:1]:
            raise ValueError(f"y has shape {seconds.shape}: must be ({len(features)},)")
        if not np.isfinite(seconds).all() or (seconds < 0).any():
            raise ValueError("y: must be finite and non-negative seconds")
        moments = Moments()
        moments.add(features, seconds)
        return self.merge(moments)

    def merge(self, moments: Moments, *, age_steps: float = 0.0) -> Self:
        """Learn from moment sums, weighted as ``age_steps`` of forgetting would have left them.

        Forgetting by age, not by order of arrival, is what lets reports come in any order.
        """
        aged = Moments(moments.sums.tolist())
        aged.scale(self._remaining(age_steps))
        self.moments_.merge(aged)
        self.num_observations_ += round(moments.count)
        self._coefficients = None
        return self

    def forget(self, steps: float) -> Self:
        """Let ``steps`` steps pass; the weight of one observation always stays, so that a kernel
        that is no longer called keeps its fit.
        """
        self.moments_.scale(max(self._remaining(steps), 1.0 / max(self.moments_.count, 1.0)))
        return self

    @property
    def source_(self) -> Literal["prior", "measured"]:
        return "measured" if self.num_observations_ >= self.min_observations else "prior"

    @property
    def coef_(self) -> Float64:
        """Seconds per feature, [F], none negative."""
        if self._coefficients is None:
            self._coefficients = self._measured() if self.source_ == "measured" else self._prior()
        return self._coefficients

    def predict(self, X: ArrayLike) -> Float64:  # noqa: N803
        """Return seconds [n] of features X [n, F]."""
        return np.asarray(_checked(X) @ self.coef_, dtype=np.float64)

    def _measured(self) -> Float64:
        return solve_nonnegative(self.moments_.gram, self.moments_.projection)

    def _prior(self) -> Float64:
        # The weights cancel y: the projection holds plain sums of features.
        pairs = self.moments_.projection[-1]
        per_pair = self.moments_.seconds / pairs if pairs > 0 else PRIOR_SECONDS_PER_PAIR
        return np.array([0.0, 0.0, 0.0, per_pair])

    def _remaining(self, steps: float) -> float:
        return float(2.0 ** (-steps / self.half_life_steps))


def solve_nonnegative(gram: Float64, projection: Float64) -> Float64:
    """Return c >= 0 that minimises c'Gc - 2p'c, for G [F, F] and p [F].

    Columns are scaled to unit diagonal: pairs are up to 2**39 where tiles are 1.
    """
    diagonal = np.diagonal(gram)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    root = np.sqrt(np.maximum(values, 0.0) + _RIDGE)
    target = vectors.T @ (projection / scale) / root
    # nnls compares with an absolute tolerance, so it gets a target of unit size.
    size = float(np.linalg.norm(target))
    if size == 0.0:
        return np.zeros(NUM_FEATURES)
    solution, _ = nnls(root[:, None] * vectors.T, target / size)
    return np.asarray(solution * size / scale, dtype=np.float64)


def _checked(features: ArrayLike) -> Float64:
    """Return features as [n, F] or raise ``ValueError``."""
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != NUM_FEATURES:
        raise ValueError(f"X has shape {values.shape}: must be (n, {NUM_FEATURES}), {FEATURES}")
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("X: must be finite and non-negative")
    return values
