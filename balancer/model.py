"""The cost model as a scikit-learn regressor, for pipelines and notebooks.

The service uses the plain model: importing scikit-learn takes longer than starting the balancer.
"""

from typing import Any

from sklearn.base import BaseEstimator, RegressorMixin

from libra.balancer.cost_model import PAIRS, PRIOR_NOISE, CostModel

__all__ = ["PAIRS", "PRIOR_NOISE", "QuadraticCostModel"]


class QuadraticCostModel(RegressorMixin, BaseEstimator, CostModel):  # type: ignore[misc]
    """Predict kernel seconds from tile features; a scikit-learn regressor that learns online.

    See ``CostModel`` for its settings and what it answers.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.target_tags.positive_only = True
        # The prior speaks before anything is learned.
        tags.requires_fit = False
        return tags

    def _more_tags(self) -> dict[str, bool]:
        # The same for scikit-learn before 1.6.
        return {"requires_positive_X": True, "requires_positive_y": True, "requires_fit": False}
