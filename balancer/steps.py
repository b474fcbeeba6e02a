"""Steps put together from what single ranks report of them.

A step is complete when all ranks of the newest attempt have reported it. Ranks report apart
and in any order, so steps wait; how many, and how long, is bounded.

Shapes: W ranks; K kernel kinds; F = 4 features.
"""

from bisect import bisect_left

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from libra.balancer.wire import StepTotals

Float64 = NDArray[np.float64]

RING_STEPS = 2000
# The newest steps keep their features, so that decisions can price them anew.
RECENT_STEPS = 16
CLOSE_AFTER_STEPS = 64
MAX_PENDING_STEPS = 512
MAX_INCOMPLETE_STEPS = 64


class StepFeatures(msgspec.Struct, eq=False, kw_only=True):
    """What the ranks computed: ``actual`` [W, K, F] by kind, and ``home`` [W, F]."""

    kinds: list[KernelKind]
    actual: Float64
    home: Float64


class StepRecord(msgspec.Struct, eq=False, kw_only=True):
    """One complete step.

    Attributes:
        policy_version: the version that all ranks had reached.
        agreed: all ranks ran that very version.
        step_seconds: of the slowest rank.
        kernel_seconds: [W], forward and backward.
        sent_bytes: sum over ranks.
        wait_seconds: of the rank that waited longest for the exchange.
        wait_share: the largest share of a rank's step that went into that wait.
        predicted_seconds: [W], what the model of that moment said; None before a fit.
        predicted_skew, home_skew: of the prediction, and of it under plain Ulysses.
        features: None once the step is no longer recent.
    """

    step: int
    attempt: int
    policy_version: int
    agreed: bool
    step_seconds: float
    kernel_seconds: Float64
    sent_bytes: int
    wait_seconds: float
    wait_share: float
    plan_mismatches: int
    predicted_seconds: Float64 | None = None
    predicted_skew: float | None = None
    home_skew: float | None = None
    features: StepFeatures | None = None

    @property
    def skew(self) -> float:
        return skew(self.kernel_seconds)

    @property
    def slowdown(self) -> Float64:
        """Kernel seconds of each rank over the mean, [W]."""
        return relative(self.kernel_seconds)

    @property
    def wasted_seconds(self) -> float:
        """What the ranks together could have computed while they waited for the slowest."""
        return float((self.kernel_seconds.max() - self.kernel_seconds).sum())

    def price(self, per_kind: Float64 | None, home: Float64 | None) -> None:
        """Note what the model says: coefficients [K, F] by kind, and [F] for the home plan."""
        if self.features is None or per_kind is None or home is None:
            return
        self.predicted_seconds = price_actual(self.features, per_kind)
        self.predicted_skew = skew(self.predicted_seconds)
        self.home_skew = skew(self.features.home @ home)


class IncompleteStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was given up: these ranks never reported it."""

    step: int
    missing: tuple[int, ...]


class StepLog(msgspec.Struct, eq=False, kw_only=True):
    """Pending, complete and given-up steps of a job.

    ``records`` is ordered by step. A new attempt that goes back in steps replaces what it does
    again. ``complete`` counts complete steps, ``incomplete`` those given up;
    ``wasted_seconds`` is summed over complete steps, those that are done again included.
    """

    attempt: int = 0
    world_size: int = 0
    pending: dict[int, dict[int, StepTotals]] = {}
    records: list[StepRecord] = []
    given_up: list[IncompleteStep] = []
    newest: int | None = None
    complete: int = 0
    incomplete: int = 0
    wasted_seconds: float = 0.0

    def begin_attempt(self, attempt: int, world_size: int) -> None:
        """Forget what the old attempt left pending."""
        self.attempt, self.world_size = attempt, world_size
        self.pending = {}
        self.newest = None

    def add(self, rank: int, totals: StepTotals) -> StepRecord | None:
        """Take in one rank's step; return the record if this completes it."""
        step = totals.step
        if self._is_closed(step):
            return None
        ranks = self.pending.setdefault(step, {})
        ranks.setdefault(rank, totals)
        if len(ranks) < self.world_size:
            if len(self.pending) > MAX_PENDING_STEPS:
                self._evict()
            return None
        record = _assemble(self.attempt, self.pending.pop(step))
        self._insert(record)
        self._close_old()
        return record

    def current(self, last: int) -> list[StepRecord]:
        """Return the newest records of this attempt, oldest first."""
        return [r for r in self.records[-last:] if r.attempt == self.attempt] if last > 0 else []

    def recent(self) -> list[StepRecord]:
        """Return those that have their features still."""
        return [r for r in self.current(RECENT_STEPS) if r.features is not None]

    def _is_closed(self, step: int) -> bool:
        if self.newest is None:
            return False
        if step <= self.newest - CLOSE_AFTER_STEPS:
            return True
        return any(r.step == step for r in self.current(CLOSE_AFTER_STEPS + 1))

    def _insert(self, record: StepRecord) -> None:
        kept = [r for r in self.records if r.attempt == self.attempt or r.step < record.step]
        kept.insert(bisect_left(kept, record.step, key=lambda r: r.step), record)
        self.records = kept[-RING_STEPS:]
        for old in self.records[:-RECENT_STEPS]:
            old.features = old.predicted_seconds = None
        self.newest = max(record.step, self.newest or 0)
        self.complete += 1
        self.wasted_seconds += record.wasted_seconds

    def _close_old(self) -> None:
        if self.newest is None:
            return
        for step in sorted(s for s in self.pending if s <= self.newest - CLOSE_AFTER_STEPS):
            self._give_up(step)

    def _evict(self) -> None:
        """Give up the step that was first heard of longest ago.

        Wild numbers of one rank and steps from before an outage both age out, while a healthy
        step is complete long before its turn.
        """
        self._give_up(next(iter(self.pending)))

    def _give_up(self, step: int) -> None:
        ranks = self.pending.pop(step)
        missing = tuple(rank for rank in range(self.world_size) if rank not in ranks)
        given_up = [*self.given_up, IncompleteStep(step=step, missing=missing)]
        self.given_up = given_up[-MAX_INCOMPLETE_STEPS:]
        self.incomplete += 1


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


def _assemble(attempt: int, ranks: dict[int, StepTotals]) -> StepRecord:
    totals = [ranks[rank] for rank in range(len(ranks))]
    versions = [t.policy_version for t in totals]
    return StepRecord(
        step=totals[0].step,
        attempt=attempt,
        policy_version=min(versions),
        agreed=min(versions) == max(versions),
        step_seconds=max(t.seconds for t in totals),
        kernel_seconds=np.array([sum(k.seconds for k in t.kernels) for t in totals], dtype=float),
        sent_bytes=sum(t.sent_bytes for t in totals),
        wait_seconds=max(t.wait_seconds for t in totals),
        wait_share=max(min(1.0, t.wait_seconds / t.seconds) if t.seconds else 0.0 for t in totals),
        plan_mismatches=sum(t.plan_mismatches for t in totals),
        features=_features(totals),
    )


def _features(totals: list[StepTotals]) -> StepFeatures:
    kinds: dict[KernelKind, int] = {}
    for rank_totals in totals:
        for kernel in rank_totals.kernels:
            kinds.setdefault(kernel.kind, len(kinds))
    home = np.array([t.home_features for t in totals], dtype=float)
    actual = np.zeros((len(totals), len(kinds), home.shape[1]))
    for rank, rank_totals in enumerate(totals):
        for kernel in rank_totals.kernels:
            actual[rank, kinds[kernel.kind]] += kernel.features
    return StepFeatures(kinds=list(kinds), actual=actual, home=home)
