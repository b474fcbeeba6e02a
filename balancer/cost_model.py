"""The cost model: a non-negative combination of a kernel call's features, fitted online.

It keeps ``Moments`` only, so it is constant in size and the fit does not depend on how
observations were split over calls, ranks and reports, nor on their order, but for rounding (1e-6
of a prediction).

Readings are taken to scatter in proportion to their price. They are weighted by 1 / seconds all
the same: by 1 / seconds^2, which would be best if the model were exact, small tiles' misfit spoils
the big ones.

Shapes: F features as fitted, 6 in the order of ``libra.attention.cost.FEATURES`` for kernel calls;
n observations; d columns as given, 4 (the first four features of calls whose tiles are alike) or F.
"""

from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.attention.cost import FEATURES, NUM_FEATURES
from libra.balancer.columns import check_columns, checked_targets, kernel_columns, note_columns
from libra.balancer.forgetting import remaining
from libra.balancer.moments import SECONDS_FLOOR, Moments
from libra.balancer.nonnegative import Solution, prior_coefficients, prior_stds, solve

Float64 = NDArray[np.float64]

PAIRS = FEATURES.index("causal_pairs")
# The price of FLOPs alone is half or a third of the truth for short tiles.
PRIOR_NOISE = 1.0


class CostModel:
    """Predict kernel seconds from tile features, and learn online.

    Until it has ``min_observations``, and while all of them have one shape, it answers with the
    prior: cost proportional to causal pairs (of features that are not a kernel's, to the last) at
    the throughput seen so far. ``source_`` says which of the two is speaking and ``why_`` the
    reason.

    Args:
        min_observations: from here on the fit is trusted.
        half_life_steps: ``forget`` of this many steps halves the weight of what is known.
        seconds_floor: shorter readings weigh as if they had taken this long.
    """

    # Of the class, so that a new model holds its settings and nothing else, as scikit-learn asks.
    num_observations_ = 0
    _solved: tuple[object, Solution | None] | None = None

    def __init__(
        self,
        *,
        min_observations: int = 20,
        half_life_steps: float = 200.0,
        seconds_floor: float = SECONDS_FLOOR,
    ) -> None:
        self.min_observations = min_observations
        self.half_life_steps = half_life_steps
        self.seconds_floor = seconds_floor

    @classmethod
    def from_moments(cls, moments: Moments, num_observations: int, **settings: Any) -> Self:
        """Return a model that knows these sums, of so many observations before any forgetting."""
        model = cls(**settings)
        model.moments_, model.num_observations_ = moments, num_observations
        return model

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name; ``deep`` changes nothing."""
        names = ("min_observations", "half_life_steps", "seconds_floor")
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name."""
        for name, value in params.items():
            setattr(self, name, value)
        return self

    @property
    def moments_(self) -> Moments:
        """The sums of all that was learned and not forgotten."""
        found = self.__dict__.setdefault("_moments", Moments())
        assert isinstance(found, Moments)
        return found

    @moments_.setter
    def moments_(self, moments: Moments) -> None:
        self._moments = moments

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Start over from these observations: X [n, d], y [n] seconds, sample_weight [n]."""
        columns, seconds, weights = self._checked(X, y, sample_weight)
        self.moments_ = Moments(num_features=columns.shape[1])
        self.num_observations_ = 0
        note_columns(self, X)
        self._learn(columns, seconds, weights)
        self._solution()
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from more observations: X [n, d], y [n] seconds, sample_weight [n].

        Weights are 1 / seconds by default; those that are given take their place.
        """
        columns, seconds, weights = self._checked(X, y, sample_weight)
        if self.num_observations_ == 0:
            self.moments_ = Moments(num_features=columns.shape[1])
            note_columns(self, X)
        check_columns(self, X, columns, self.moments_.num_features)
        return self._learn(columns, seconds, weights)

    def merge(self, moments: Moments, *, age_steps: float = 0.0) -> Self:
        """Learn from moment sums, weighted as ``age_steps`` of forgetting would have left them.

        Forgetting by age, not by order of arrival, is what lets reports come in any order.
        """
        aged = Moments(moments.sums.tolist(), num_features=moments.num_features)
        aged.scale(remaining(age_steps, self.half_life_steps))
        if aged.num_features != self.moments_.num_features:
            raise ValueError(
                f"moments are of {aged.num_features} features: must be of "
                f"{self.moments_.num_features}"
            )
        self.moments_.merge(aged)
        self.num_observations_ += round(moments.count)
        return self

    def forget(self, steps: float) -> Self:
        """Let ``steps`` steps pass; the weight of one observation always stays, so that a kernel
        that is no longer called keeps its fit.
        """
        self.moments_.scale(
            max(remaining(steps, self.half_life_steps), 1.0 / max(self.moments_.count, 1.0))
        )
        return self

    @property
    def source_(self) -> Literal["prior", "measured"]:
        return "prior" if self._solution() is None else "measured"

    @property
    def why_(self) -> str:
        """Say in a sentence where predictions come from."""
        seen, needed = self.num_observations_, self.min_observations
        if self.source_ == "measured":
            return f"Fitted to {seen} observations, which scatter by {self.noise_:.1%}."
        column = FEATURES[PAIRS].replace("_", " ") if self._is_kernel else "the last feature"
        if seen >= needed:
            reason = f"all {seen} observations have one shape, which tells nothing of others"
        else:
            reason = f"{seen} of {needed} observations"
        return f"Cost is taken to be proportional to {column}: {reason}."

    @property
    def is_calibrated_(self) -> bool:
        """Whether its total is measured, be it that the prior says how it is distributed."""
        return self.num_observations_ >= self.min_observations

    @property
    def coef_(self) -> Float64:
        """Seconds per feature, [F], none negative."""
        solution = self._solution()
        return self._prior() if solution is None else solution.coefficients

    @property
    def coef_std_(self) -> Float64:
        """Standard deviations of ``coef_``, [F]; infinite where nothing is known.

        Features are alike, so one alone may be uncertain where every prediction is sure.
        """
        solution = self._solution()
        if solution is None:
            return prior_stds(self.moments_)
        return np.where(solution.seen, np.sqrt(np.diagonal(solution.covariance)), np.inf)

    @property
    def noise_(self) -> float:
        """How far a reading lies from its prediction, relative to it: a standard deviation."""
        solution = self._solution()
        return PRIOR_NOISE if solution is None else solution.noise

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Float64: ...  # noqa: N803
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Float64, Float64]: ...  # noqa: N803

    def predict(
        self,
        X: ArrayLike,  # noqa: N803
        return_std: bool = False,
    ) -> Float64 | tuple[Float64, Float64]:
        """Return seconds [n] of X [n, d]; with ``return_std`` also the standard deviation [n] of
        readings around them.
        """
        columns = kernel_columns(X, least=0)
        check_columns(self, X, columns, self.moments_.num_features)
        seconds = np.asarray(columns @ self.coef_, dtype=np.float64)
        return (seconds, self._std(columns, seconds)) if return_std else seconds

    def predict_interval(
        self,
        X: ArrayLike,  # noqa: N803
        level: float = 0.95,
    ) -> tuple[Float64, Float64]:
        """Return (low [n], high [n]): seconds between which a reading of X [n, d] lies with
        probability ``level``.
        """
        if not 0 < level < 1:
            raise ValueError(f"level={level}: must be above 0 and below 1")
        seconds, std = self.predict(X, return_std=True)
        solution = self._solution()
        freedom = np.inf if solution is None else solution.freedom
        from scipy.special import stdtrit  # the service needs neither, and starts without it

        margin = std * float(stdtrit(min(freedom, 1e6), (1 + level) / 2))
        return np.maximum(seconds - margin, 0.0), seconds + margin

    @property
    def _is_kernel(self) -> bool:
        return self.moments_.num_features == NUM_FEATURES

    @property
    def _prior_column(self) -> int:
        return PAIRS if self._is_kernel else self.moments_.num_features - 1

    def _checked(self, X: Any, y: Any, sample_weight: Any) -> tuple[Float64, Float64, Float64]:  # noqa: N803
        if not 0 < self.seconds_floor < np.inf:
            raise ValueError(f"seconds_floor={self.seconds_floor}: must be above 0 and finite")
        if not self.half_life_steps > 0:
            raise ValueError(f"half_life_steps={self.half_life_steps}: must be above 0")
        columns = kernel_columns(X)
        seconds, weights = checked_targets(columns, y, sample_weight)
        if weights is None:
            weights = 1.0 / np.maximum(seconds, self.seconds_floor)
        return columns, seconds, weights

    def _learn(self, columns: Float64, seconds: Float64, weights: Float64) -> Self:
        moments = Moments(num_features=columns.shape[1])
        moments.add(columns, seconds, weights)
        return self.merge(moments)

    def _solution(self) -> Solution | None:
        """Return the fit, None while the prior speaks; made once for what is known."""
        moments = self.moments_
        key = (self.min_observations, self.num_observations_, moments.sums.tobytes())
        if self._solved is None or self._solved[0] != key:
            self._solved = key, self._fitted() if self.is_calibrated_ else None
        return self._solved[1]

    def _fitted(self) -> Solution | None:
        if not self.moments_.count > 0:
            return None
        solution = solve(self.moments_, self._prior_column, max(self.num_observations_, 1))
        # What has one feature has one shape, and the prior is its fit.
        return solution if solution.directions >= min(2, self.moments_.num_features) else None

    def _prior(self) -> Float64:
        return prior_coefficients(self.moments_, self._prior_column)

    def _std(self, columns: Float64, seconds: Float64) -> Float64:
        solution = self._solution()
        if solution is None:
            return PRIOR_NOISE * seconds
        typical_s = max(self.moments_.seconds / self.moments_.count, 1e-300)
        return np.asarray(np.sqrt(solution.variance(columns, seconds, typical_s)))
