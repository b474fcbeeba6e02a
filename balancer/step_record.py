"""One complete step, as its ranks reported it.

Shapes: W ranks; K kernel kinds; F = 6 features; M micro-batches.
"""

from collections.abc import Collection, Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.pending import PendingStep
from libra.balancer.silence import is_enough
from libra.balancer.trust import impossible

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

_NONE = np.zeros(0)


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
        rank_seconds: [W], each rank's own reading of the step; empty once it has no prediction.
        kernel_seconds: [W], forward and backward; float32 once the step is ``compact``.
        waits: [W] seconds of each rank's exposed waits for the exchange; empty without features.
        sent_bytes: sum over ranks.
        wait_seconds: of the rank that waited longest for the exchange.
        wait_share: the largest share of a rank's step that went into that wait.
        predicted_seconds: [W], what the model of that moment said; None before a fit, and later.
        predicted_skew, home_skew: of the prediction, and of it under plain Ulysses.
        features: None once the step is no longer recent.
        believed: [W], whose kernel seconds are believed; None where all are.
        missing: ranks that were silent: a typical peer's figures stand for theirs.
        repeated: [W], whose are those of an earlier step; None where nobody's are.
        kept_skew: of a compact step; None before.
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
    kept_skew: float | None = None

    @property
    def compact(self) -> bool:
        """Is it kept for charts only?"""
        return self.kept_skew is not None

    @property
    def detail(self) -> int:
        """How much of it is kept: 2 with features, 1 with kernel seconds to the bit, 0 compact."""
        return 0 if self.compact else 1 + (self.features is not None)

    @property
    def num_bytes(self) -> int:
        """About what it takes, in memory as in the store."""
        own, maybe = self.features, (self.predicted_seconds, self.believed)
        arrays = [self.kernel_seconds, self.rank_seconds, self.waits, *maybe]
        arrays += [] if own is None else [own.actual, own.seconds, own.home, own.home_pairs]
        return 1024 + sum(array.nbytes for array in arrays if array is not None)

    @property
    def believed_seconds(self) -> Float64:
        """Kernel seconds of those ranks that are believed, at most [W]."""
        return self.kernel_seconds if self.believed is None else self.kernel_seconds[self.believed]

    @property
    def skew(self) -> float:
        return skew(self.believed_seconds) if self.kept_skew is None else self.kept_skew

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

    @property
    def recovered_seconds(self) -> float:
        """What all ranks together would have waited longer under plain Ulysses, by the model.

        Below zero where the policy made it worse; 0 under plain Ulysses, and without a model.
        """
        if self.home_skew is None or not self.policy_version:
            return 0.0
        return float((self.home_skew - self.skew) * self.believed_seconds.sum())

    def doubt(self, ranks: Collection[int]) -> None:
        """Believe all but these ranks, and nobody who says what this step rules out."""
        believed = ~impossible(self.kernel_seconds, self.rank_seconds)
        believed[list(ranks)] = False
        believed[list(self.missing)] = False
        self.believed = believed if believed.any() and not believed.all() else None

    def forget_features(self) -> None:
        """Drop what decisions price anew."""
        self.features, self.waits = None, _NONE

    def forget_prediction(self) -> None:
        """Drop what claims of the newest steps are held against."""
        self.forget_features()
        self.predicted_seconds, self.rank_seconds = None, _NONE

    def make_compact(self) -> None:
        """Keep what charts show, and nothing that is compared to the bit."""
        self.forget_prediction()
        self.kept_skew = self.skew
        self.kernel_seconds = cast(Float64, self.kernel_seconds.astype(np.float32))
        self.repeated, self.missing = None, ()

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


def assemble(
    step: int, attempt: int, world_size: int, pending: PendingStep, kinds: Sequence[KernelKind]
) -> StepRecord:
    """Return the step that these ranks reported; a typical one stands for those that did not.

    ``kinds`` are those that the pending step's chunks number.
    """
    told = pending.gather(len(kinds)).of_all(world_size)
    missing = tuple(sorted(set(range(world_size)) - pending.ranks.keys()))
    version, ran_by = _common_version(told.versions)
    shares = np.divide(told.waits, told.seconds, out=np.zeros(world_size), where=told.seconds > 0)
    return StepRecord(
        step=step,
        attempt=attempt,
        policy_version=version,
        agreed=is_enough(ran_by, world_size),
        step_seconds=float(np.median(told.seconds)),
        rank_seconds=told.seconds,
        kernel_seconds=told.kernel_seconds.sum(axis=1),
        waits=told.waits,
        sent_bytes=told.sent_bytes,
        wait_seconds=float(told.waits.max()),
        wait_share=min(1.0, float(shares.max())),
        plan_mismatches=told.mismatches,
        features=StepFeatures(
            kinds=[kinds[number] for number in told.kinds],
            actual=told.actual,
            seconds=told.kernel_seconds,
            home=told.home,
            home_pairs=told.pairs,
        ),
        missing=missing,
    )


def _common_version(versions: NDArray[np.int64]) -> tuple[int, int]:
    """Return the version that most ranks ran, the lowest of several, and how many ran it.

    Ranks agree on a policy before a step, so a rank that tells of another one is mistaken.
    """
    found, counts = np.unique(versions, return_counts=True)
    most = int(counts.argmax())
    return int(found[most]), int(counts[most])
