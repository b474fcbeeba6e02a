"""One complete step, put together from what its ranks reported of it.

Shapes: W ranks; K kernel kinds; F = 6 features; M micro-batches.
"""

from collections import Counter
from collections.abc import Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.silence import is_enough
from libra.balancer.trust import impossible
from libra.balancer.wire import StepTotals

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


class StepFeatures(msgspec.Struct, eq=False, kw_only=True):
    """What the ranks computed: ``actual`` [W, K, F] by kind in ``seconds`` [W, K], and ``home``
    [W, F].

    ``home_pairs`` [W, M] are the causal pairs of each micro-batch at home, zero where a rank had
    fewer; M is 0 where ranks do not tell.
    """

    kinds: list[KernelKind]
    actual: Float64
    seconds: Float64
    home: Float64
    home_pairs: Float64


class StepRecord(msgspec.Struct, eq=False, kw_only=True):
    """One complete step.

    Attributes:
        policy_version: the version that most ranks ran.
        agreed: all ran it, but for so few that what they say counts for nothing.
        step_seconds: median of the ranks: they step in lockstep, and a broken clock has no say.
        rank_seconds: [W], each rank's own reading of the step.
        kernel_seconds: [W], forward and backward.
        waits: [W] seconds of each rank's exposed waits for the exchange.
        sent_bytes: sum over ranks.
        wait_seconds: of the rank that waited longest for the exchange.
        wait_share: the largest share of a rank's step that went into that wait.
        predicted_seconds: [W], what the model of that moment said; None before a fit.
        predicted_skew, home_skew: of the prediction, and of it under plain Ulysses.
        features: None once the step is no longer recent.
        believed: [W], whose kernel seconds are believed; None where all are.
        missing: ranks that were silent: a typical peer's figures stand for theirs.
        repeated: [W], whose are those of an earlier step; None where nobody's are.
    """

    step: int
    attempt: int
    policy_version: int
    agreed: bool
    step_seconds: float
    rank_seconds: Float64
    kernel_seconds: Float64
    waits: Float64
    sent_bytes: int
    wait_seconds: float
    wait_share: float
    plan_mismatches: int
    predicted_seconds: Float64 | None = None
    predicted_skew: float | None = None
    home_skew: float | None = None
    features: StepFeatures | None = None
    believed: Bools | None = None
    repeated: Bools | None = None
    missing: tuple[int, ...] = ()

    @property
    def believed_seconds(self) -> Float64:
        """Kernel seconds of those ranks that are believed, at most [W]."""
        return self.kernel_seconds if self.believed is None else self.kernel_seconds[self.believed]

    @property
    def skew(self) -> float:
        return skew(self.believed_seconds)

    @property
    def slowdown(self) -> Float64:
        """Kernel seconds of each rank over the believed ones' mean, [W]; 1.0 for the others."""
        if self.believed is None:
            return relative(self.kernel_seconds)
        slowdown = np.ones_like(self.kernel_seconds)
        slowdown[self.believed] = relative(self.believed_seconds)
        return slowdown

    @property
    def wasted_seconds(self) -> float:
        """What believed ranks together could have computed while they waited for the slowest."""
        seconds = self.believed_seconds
        return float((seconds.max() - seconds).sum())

    def doubt(self, ranks: Collection[int]) -> None:
        """Believe all but these ranks, and nobody who says what this step rules out."""
        believed = ~impossible(self.kernel_seconds, self.rank_seconds)
        believed[list(ranks)] = False
        believed[list(self.missing)] = False
        self.believed = believed if believed.any() and not believed.all() else None

    def price(self, per_kind: Float64 | None, home: Float64 | None) -> None:
        """Note what the model says: coefficients [K, F] by kind, and [F] for the home plan."""
        if self.features is None or per_kind is None or home is None:
            return
        self.predicted_seconds = price_actual(self.features, per_kind)
        self.predicted_skew = skew(self.predicted_seconds)
        self.home_skew = skew(self.features.home @ home)


def relative(seconds: Float64) -> Float64:
    """Return each value over the mean; all ones where there is nothing to compare."""
    mean = seconds.mean()
    return seconds / mean if mean > 0 else np.ones_like(seconds)


def skew(seconds: Float64) -> float:
    """Return the largest over the mean."""
    return float(relative(seconds).max())


def price_actual(features: StepFeatures, per_kind: Float64) -> Float64:
    """Return predicted seconds [W] under coefficients [K, F]."""
    return np.asarray(np.einsum("wkf,kf->w", features.actual, per_kind), dtype=np.float64)


def assemble(attempt: int, world_size: int, ranks: dict[int, StepTotals]) -> StepRecord:
    """Return the step that these ranks reported; a typical one stands for those that did not."""
    missing = tuple(set(range(world_size)) - ranks.keys()) if len(ranks) < world_size else ()
    if missing:
        by_cost = sorted(ranks, key=lambda r: (sum(k.seconds for k in ranks[r].kernels), r))
        typical = ranks[by_cost[len(by_cost) // 2]]
        typical = msgspec.structs.replace(
            typical, sent_bytes=0, wait_seconds=0.0, plan_mismatches=0
        )
        ranks = ranks | dict.fromkeys(missing, typical)
    totals = [ranks[rank] for rank in range(world_size)]
    version, ran_by = _common_version([t.policy_version for t in totals])
    features = _features(totals)
    return StepRecord(
        step=totals[0].step,
        attempt=attempt,
        policy_version=version,
        agreed=is_enough(ran_by, world_size),
        step_seconds=float(np.median([t.seconds for t in totals])),
        rank_seconds=np.array([t.seconds for t in totals], dtype=float),
        kernel_seconds=features.seconds.sum(axis=1),
        waits=np.array([t.wait_seconds for t in totals], dtype=float),
        sent_bytes=sum(t.sent_bytes for t in totals),
        wait_seconds=max(t.wait_seconds for t in totals),
        wait_share=max(min(1.0, t.wait_seconds / t.seconds) if t.seconds else 0.0 for t in totals),
        plan_mismatches=sum(t.plan_mismatches for t in totals),
        features=features,
        missing=missing,
    )


def _common_version(versions: list[int]) -> tuple[int, int]:
    """Return the version that most ranks ran, the lowest of several, and how many ran it.

    Ranks agree on a policy before a step, so a rank that tells of another one is mistaken.
    """
    counts = Counter(versions)
    version = min(counts, key=lambda own: (-counts[own], own))
    return version, counts[version]


def _features(totals: list[StepTotals]) -> StepFeatures:
    kernels = [(rank, kernel) for rank, t in enumerate(totals) for kernel in t.kernels]
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(k.kind for _, k in kernels))}
    home = np.array([t.home_features for t in totals], dtype=float)
    actual = np.zeros((len(totals), len(kinds), home.shape[1]))
    seconds = np.zeros((len(totals), len(kinds)))
    if kernels:
        place = ([rank for rank, _ in kernels], [kinds[kernel.kind] for _, kernel in kernels])
        np.add.at(actual, place, np.array([kernel.features for _, kernel in kernels]))
        np.add.at(seconds, place, np.array([kernel.seconds for _, kernel in kernels]))
    return StepFeatures(
        kinds=list(kinds), actual=actual, seconds=seconds, home=home, home_pairs=_pairs(totals)
    )


def _pairs(totals: list[StepTotals]) -> Float64:
    """Return home pairs [W, M], zero where a rank had fewer micro-batches."""
    pairs = np.zeros((len(totals), max((len(t.home_pairs) for t in totals), default=0)))
    if pairs.size:
        for rank, rank_totals in enumerate(totals):
            pairs[rank, : len(rank_totals.home_pairs)] = rank_totals.home_pairs
    return pairs
