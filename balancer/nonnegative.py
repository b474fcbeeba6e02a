"""Non-negative weighted least squares of moment sums, and what such a fit does not know.

Every coefficient is drawn to a prior: one column at the throughput that was measured, the others
nothing. How firmly is Bayes' rule, not a knob. A coefficient may be anything up to what explains
all seconds by its column alone, so that is the prior's standard deviation; the readings' own
scatter says how much they weigh against it. Where they determine a coefficient the prior is
unfelt; in a direction in which they are silent (uncut tiles: query and key tokens are equal) it
speaks, and the uncertainty is the prior's.

Pure numpy and scipy: agents and balancers fit alike. Shapes: F features; n observations.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.balancer.moments import Moments

Float64 = NDArray[np.float64]

# Before anything is measured: a modest core's pace for a causal pair.
PRIOR_SECONDS = 1e-9
# Relative to a gram matrix of unit diagonal: above rounding (1e-15), far below any noise.
RIDGE = 1e-9
# Scatter that sums of squares cannot tell from none.
_LEAST_NOISE = 1e-7
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Solution:
    """A fit.

    Attributes:
        coefficients: [F] seconds per feature, none negative.
        covariance: [F, F] of the coefficients; nothing is known of features never ``seen``.
        noise: standard deviation of a reading relative to its price.
        freedom: observations beyond those that the coefficients use up, at least 1.
        directions: of the features, in which the readings outweigh the prior.
        seen: [F] bool, features that any observation had.
    """

    coefficients: Float64
    covariance: Float64
    noise: float
    freedom: float
    directions: int
    seen: NDArray[np.bool_]

    def variance(self, features: Float64, seconds: Float64, typical_s: float) -> Float64:
        """Return the variance [n] of readings around the prices ``seconds`` [n] of features [n, F].

        Args:
            typical_s: seconds of a call in the fit. What priced a costlier one is costlier too,
                and scatters as widely.
        """
        known = np.einsum("nf,fg,ng->n", features, self.covariance, features)
        known = np.maximum(known, 0.0) * np.maximum(seconds / typical_s, 1.0)
        # A feature never seen may cost nothing or as much as all others.
        unseen = (features[:, ~self.seen] > 0).any(axis=1)
        return np.asarray(known + (self.noise**2 + unseen) * seconds**2)


def prior_coefficients(moments: Moments, column: int) -> Float64:
    """Return [F]: all seconds are one column's, at the throughput measured so far."""
    prior = np.zeros(moments.num_features)
    amount = moments.projection[column]
    prior[column] = moments.weighted_squares / amount if amount > 0 else PRIOR_SECONDS
    return prior


def prior_stds(moments: Moments) -> Float64:
    """Return [F]: what would explain all seconds by one column alone; infinite if never seen."""
    amounts = moments.projection
    most = moments.weighted_squares / np.where(amounts > 0, amounts, 1.0)
    return np.asarray(np.where(amounts > 0, most, np.inf))


def solve(moments: Moments, column: int, observations: float) -> Solution:
    """Fit coefficients >= 0 to the sums of one observation or more; the prior is ``column``'s.

    Args:
        observations: how many there were before any was forgotten. Forgetting lets them weigh
            less against new ones, not against the prior.
    """
    sums = _Sums(moments)
    prior = prior_coefficients(moments, column)
    # A first fit says how noisy readings are, and so how firmly the prior speaks in the second.
    variance = sums.variance(sums.minimum(np.full(len(prior), RIDGE), prior))
    kept = min(1.0, sums.count / observations)
    ridge = np.maximum(variance * kept * sums.share, RIDGE)
    coefficients = sums.minimum(ridge, prior)
    variance = sums.variance(coefficients)
    inverse = np.linalg.inv(sums.correlation + np.diag(ridge))
    informed = np.linalg.eigvalsh(sums.correlation / np.sqrt(np.outer(ridge, ridge)))
    return Solution(
        coefficients=coefficients,
        covariance=variance * inverse / np.outer(sums.scale, sums.scale),
        noise=float(np.sqrt(variance * sums.count / max(sums.squares, _TINY))),
        freedom=sums.freedom(coefficients),
        directions=int((informed > 1.0).sum()),
        seen=np.diagonal(sums.gram) > 0,
    )


class _Sums:
    """Moment sums as matrices; columns are scaled to unit diagonal: pairs are up to 2**39 where
    tiles are 1.
    """

    def __init__(self, moments: Moments) -> None:
        self.gram, self.projection = moments.gram, moments.projection
        self.squares, self.count = moments.weighted_squares, moments.count
        diagonal = np.diagonal(self.gram)
        self.scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        self.correlation: Float64 = self.gram / np.outer(self.scale, self.scale)
        # How much of all seconds' squares a column alone explains, over them again: a prior that
        # may be anything up to all of it weighs that much, in units of the readings' variance.
        self.share: Float64 = (self.projection / self.scale / max(self.squares, _TINY)) ** 2

    def minimum(self, ridge: Float64, prior: Float64) -> Float64:
        """Return c >= 0 that minimises c'Gc - 2p'c + sum of ridge (scale (c - prior))^2."""
        target = self.projection / self.scale + ridge * prior * self.scale
        return _minimum(self.correlation + np.diag(ridge), target) / self.scale

    def freedom(self, coefficients: Float64) -> float:
        return max(self.count - float((coefficients > 0).sum()), 1.0)

    def variance(self, coefficients: Float64) -> float:
        """Return the weighted variance of readings around their prices."""
        misfit = float(coefficients @ (self.gram @ coefficients - 2 * self.projection))
        least = _LEAST_NOISE**2 * self.squares
        return max(self.squares + misfit, least) / self.freedom(coefficients)


def solve_nonnegative(gram: Float64, projection: Float64) -> Float64:
    """Return c >= 0 that minimises c'Gc - 2p'c, for G [F, F] and p [F], with no prior but zero."""
    diagonal = np.diagonal(gram)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    correlation = gram / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
    return _minimum(correlation, projection / scale) / scale


def _minimum(matrix: Float64, target: Float64) -> Float64:
    """Return c >= 0 that minimises c'Mc - 2t'c, for M [F, F] of about unit diagonal."""
    values, vectors = np.linalg.eigh(matrix)
    root = np.sqrt(np.maximum(values, RIDGE / 2))
    wanted = vectors.T @ target / root
    from scipy.optimize import nnls  # slow to import, and never needed to start

    # nnls compares with an absolute tolerance, so it gets a target of unit size.
    size = float(np.linalg.norm(wanted))
    if size == 0.0:
        return np.zeros(len(target))
    solution, _ = nnls(root[:, None] * vectors.T, wanted / size)
    return np.asarray(solution * size, dtype=np.float64)
