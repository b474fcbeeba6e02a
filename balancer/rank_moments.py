"""One kernel kind's moment sums, kept apart for each rank, and the one fit that they agree on.

No rank rules the model. Each is first brought to the typical rank's pace, so that a slow or
boasting one changes no coefficient; then it weighs by its calls and seconds, bounded against its
peers', and less where its calls scatter more than theirs.

Shapes: W ranks; N sums, in the order of ``libra.balancer.moments.num_sums``; F = 6 features.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import FEATURES, NUM_FEATURES
from libra.balancer.cost_model import CostModel
from libra.balancer.medians import lower_median
from libra.balancer.moments import NUM_SUMS, Moments, at_pace

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Int64 = NDArray[np.int64]

# A rank counts for at most so many times the median rank's calls, and seconds.
_MAX_INFLUENCE = 4.0
# A rank with a smaller share of the median's calls says nothing of what is typical.
_MIN_SHARE = 0.1
_ROUNDS = 8
_SETTLED = 1e-7
_TINY = 1e-12
_GRAM = slice(3, NUM_SUMS - NUM_FEATURES)
_PROJECTION = slice(NUM_SUMS - NUM_FEATURES, NUM_SUMS)
_ROW, _COLUMN = np.triu_indices(NUM_FEATURES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Consensus:
    """What the ranks agree on.

    Attributes:
        model: the typical rank's.
        paces: [W], seconds of each rank over the model's, 1.0 for the typical rank.
        scatters: [W], cost-weighted relative scatter of its calls around the model at its pace;
            NaN for a rank without calls.
    """

    model: CostModel
    paces: Float64
    scatters: Float64


class RankMoments(msgspec.Struct, eq=False, kw_only=True):
    """Sums [W, N] under forgetting, and [W] calls ever; ``base`` [N] is what others left before."""

    sums: Float64
    calls: Float64
    base: Float64
    base_calls: float = 0.0

    @classmethod
    def empty(cls, world_size: int) -> "RankMoments":
        zeros = np.zeros((world_size, NUM_SUMS))
        return cls(sums=zeros, calls=np.zeros(world_size), base=np.zeros(NUM_SUMS))

    @property
    def count(self) -> float:
        return float(self.sums[:, 0].sum() + self.base[0])

    def add(self, ranks: Int64, sums: Float64, weights: Float64) -> None:
        """Fold in new sums [n, N] of n different ranks, weighted [n] by their age."""
        self.sums[ranks] += weights[:, None] * sums
        self.calls[ranks] += sums[:, 0]

    def scale(self, factor: float) -> None:
        """Weigh the past by ``factor``; the weight of one call always stays, so that a kernel that
        is no longer called keeps its fit.
        """
        factor = max(factor, 1.0 / max(self.count, 1.0))
        self.sums *= factor
        self.base *= factor

    def reset(self, factor: float, keep_calls: float) -> None:
        """After a change: all calls take ``factor`` times longer, and the past counts little."""
        self.sums = at_pace(self.sums, 1.0 / factor)
        self.base = at_pace(self.base, 1.0 / factor)
        self.scale(min(1.0, keep_calls / max(self.count, 1.0)))

    def rebase(self, consensus: Moments, calls: float, world_size: int) -> "RankMoments":
        """Return what other ranks start from: the consensus of these."""
        fresh = RankMoments.empty(world_size)
        return msgspec.structs.replace(fresh, base=consensus.sums.copy(), base_calls=calls)

    def agree(self, model: CostModel, doubted: Bools) -> Consensus:
        """Return the consensus of the ranks that are not ``doubted`` [W].

        ``model`` has the settings; its coefficients are only where the search begins.
        """
        paces, scatters = np.ones(len(self.sums)), np.full(len(self.sums), np.nan)
        active = np.flatnonzero(self.sums[:, 0] > 0)
        if not len(active):
            return Consensus(
                model=self._fit(model, self.base, self.base_calls), paces=paces, scatters=scatters
            )
        ranks = _Ranks(self.sums[active], self.calls[active], ~doubted[active])
        coefficients = model.coef_ if model.num_observations_ else ranks.first_guess()
        for _ in range(_ROUNDS):
            paces[active], scatters[active], weights, calls = ranks.judge(coefficients)
            sums = self.base + _paced_sum(ranks.sums, weights, paces[active])
            model = self._fit(model, sums, self.base_calls + calls)
            moved = ranks.features @ np.abs(model.coef_ - coefficients)
            coefficients = model.coef_
            if (moved <= _SETTLED * (ranks.features @ coefficients)).all():
                break
        return Consensus(model=model, paces=paces, scatters=scatters)

    @staticmethod
    def _fit(model: CostModel, sums: Float64, calls: float) -> CostModel:
        # The weight of evidence fades, and that it was once enough stays.
        moments = Moments(sums.tolist())
        return CostModel.from_moments(moments, round(calls), **model.get_params())


class _Ranks:
    """Ranks with evidence: what of their sums no guess of the coefficients changes."""

    def __init__(self, sums: Float64, calls: Float64, believed: Bools) -> None:
        self.sums = sums
        # The weights cancel y: the projection holds plain sums of features.
        self.features = sums[:, _PROJECTION]
        self.seconds = np.maximum(sums[:, 1], _TINY)
        self._calls = calls
        # Where all are doubted there is nobody better to believe.
        self._believed = believed if believed.any() else np.ones(len(sums), dtype=bool)
        median = lower_median(sums[self._believed, 0])
        self._typical = self._believed & (sums[:, 0] >= _MIN_SHARE * median)

    def first_guess(self) -> Float64:
        """Return [F]: cost by causal pairs alone, at the typical rank's throughput."""
        pairs = np.zeros(NUM_FEATURES)
        pairs[FEATURES.index("causal_pairs")] = 1.0
        work = np.maximum(self.features @ pairs, _TINY)
        return pairs * lower_median((self.seconds / work)[self._typical])

    def judge(self, coefficients: Float64) -> tuple[Float64, Float64, Float64, float]:
        """Return paces, scatters and weights, and the calls that count."""
        predicted = np.maximum(self.features @ coefficients, _TINY)
        ratios = self.seconds / predicted
        paces = ratios / lower_median(ratios[self._typical])
        scatters = _scatters(self.sums, coefficients, paces)
        noise = lower_median(scatters[self._typical])
        weights = self._believed * self._capped(self.sums[:, 0]) * self._capped(predicted)
        # Inverse variance, as far as a rank is noisier than is typical.
        weights *= np.minimum(1.0, (noise / np.maximum(scatters, _TINY)) ** 2)
        calls = self._believed * self._calls * self._capped(self._calls)
        return paces, scatters, weights, float(calls.sum())

    def _capped(self, amounts: Float64) -> Float64:
        """Return the factors that bound each amount by a few times the median."""
        most = _MAX_INFLUENCE * lower_median(amounts[self._typical])
        return most / np.maximum(amounts, max(most, _TINY))


def _paced_sum(sums: Float64, weights: Float64, paces: Float64) -> Float64:
    """Return [N]: weights [W] @ ``at_pace`` of sums [W, N], without a copy of them."""
    total = weights @ sums
    total[1:3] = (weights / paces) @ sums[:, 1:3]
    total[_GRAM] = (weights * paces) @ sums[:, _GRAM]
    return np.asarray(total, dtype=np.float64)


def scatters_at_own_pace(sums: Float64, coefficients: Float64) -> Float64:
    """Return [n]: relative scatter of calls of sums [n, N] around the model, at their own pace."""
    predicted = np.maximum(sums[:, _PROJECTION] @ coefficients, _TINY)
    return _scatters(sums, coefficients, np.maximum(sums[:, 1], _TINY) / predicted)


def _scatters(sums: Float64, coefficients: Float64, paces: Float64) -> Float64:
    """Return [W]: root of sum w (y - prediction)^2 over sum y, of sums [W, N] at paces [W]."""
    products = np.outer(coefficients, coefficients)[_ROW, _COLUMN]
    products *= np.where(_ROW == _COLUMN, 1.0, 2.0)
    squares = (
        paces * (sums[:, _GRAM] @ products)
        - 2.0 * (sums[:, _PROJECTION] @ coefficients)
        + sums[:, 2] / paces
    )
    return np.sqrt(np.maximum(squares, 0.0) * paces / np.maximum(sums[:, 1], _TINY))
