"""What the exchange costs: seconds of a wave from its messages and bytes, fitted as kernels are.

Agents send moment sums of waves that were waited for, whose peers came in time as far as a rank
can tell. Sums are kept apart for each rank, so that none rules the fit: each is brought to the
typical rank's pace, counts for at most a few times the median rank's waves, and for nothing where
its seconds lie far from the others'.

Shapes: n ranks with waves; N sums, in the order of ``libra.balancer.moments.num_sums``.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.balancer.batch import Batch
from libra.balancer.forgetting import (
    advanced,
    passed_steps,
    remaining,
    remaining_each,
    steps_behind_each,
)
from libra.balancer.medians import spread
from libra.balancer.moments import Moments, at_pace
from libra.balancer.nonnegative import solve_nonnegative
from libra.balancer.wire import MAX_WAVE_TRANSPORTS, NUM_WAVE_SUMS, WAVE_FEATURES

Float64 = NDArray[np.float64]

MIN_WAVES = 40
HALF_LIFE_STEPS = 200.0
# A rank counts for at most so many times the median rank's waves.
MAX_INFLUENCE = 4.0
# Three times what others need for the same waves is another link, or a lie.
_FLOOR = float(np.log(3.0))
_SPREADS = 4.0
_ROUNDS = 4
_TINY = 1e-300
# The error averages over about this many reports.
_KEPT = 1 - 1 / 100


class ExchangeFit(msgspec.Struct, eq=False, kw_only=True):
    """One transport's waves.

    Attributes:
        rows: the place in ``sums`` [n, N] of each rank that reported waves.
        coefficients: seconds of a message and of a byte, as of the newest complete step.
        typical: messages, bytes and seconds of the mean wave.
        count: waves that the fit rests on, under forgetting.
        missed, judged: reports, and the sum of their relative misses, predicted before learned.
    """

    transport: str
    rows: dict[int, int] = {}
    sums: Float64 = msgspec.field(default_factory=lambda: np.zeros((0, NUM_WAVE_SUMS)))
    coefficients: Float64 = msgspec.field(default_factory=lambda: np.zeros(len(WAVE_FEATURES)))
    typical: Float64 = msgspec.field(default_factory=lambda: np.zeros(len(WAVE_FEATURES) + 1))
    count: int = 0
    missed: float = 0.0
    judged: float = 0.0

    @property
    def source(self) -> Literal["measured", "unknown"]:
        return "measured" if self.count >= MIN_WAVES and self.coefficients.any() else "unknown"

    @property
    def error(self) -> float | None:
        """Mean relative miss of a report's seconds, each at most 1; None before one was judged."""
        return self.missed / self.judged if self.judged > 0 else None

    def learn(self, ranks: Sequence[int], sums: Float64, ages_steps: Float64) -> None:
        """Judge and fold in waves of different ranks, sums [n, N], weighted as ages [n] would have
        left them.
        """
        if self.source == "measured":
            self._judge(sums[sums[:, 1] > 0])
        rows = [self.rows.setdefault(rank, len(self.rows)) for rank in ranks]
        if max(rows) >= len(self.sums):
            grown = np.zeros((max(8, 2 * max(rows)), NUM_WAVE_SUMS))
            grown[: len(self.sums)] = self.sums
            self.sums = grown
        self.sums[rows] += remaining_each(ages_steps, HALF_LIFE_STEPS)[:, None] * sums

    def _judge(self, sums: Float64) -> None:
        """Predict the seconds of sums [n, N], one after the other."""
        # The weights cancel y: the projection holds plain sums of features.
        predicted = sums[:, -len(WAVE_FEATURES) :] @ self.coefficients
        missed = np.minimum(1.0, np.abs(predicted / sums[:, 1] - 1))
        for miss in missed.tolist():
            self.missed = _KEPT * self.missed + miss
            self.judged = _KEPT * self.judged + 1

    def advance(self, steps: float) -> None:
        """Forget ``steps`` steps and fit anew; enough always stays to know what was known."""
        factor = remaining(steps, HALF_LIFE_STEPS)
        if self.count >= MIN_WAVES:
            factor = max(factor, min(1.0, MIN_WAVES / self.count))
        self.sums *= factor
        moments = agreed_moments(self.sums[: len(self.rows)])
        self.count = round(moments.count)
        self.coefficients = solve_nonnegative(moments.gram, moments.projection)
        if moments.count > 0:
            self.typical = np.append(moments.projection, moments.seconds) / moments.count


class ExchangeFits(msgspec.Struct, eq=False, kw_only=True):
    """All transports' fits, and the step up to which they have forgotten."""

    fits: list[ExchangeFit] = []
    clock: int | None = None

    @property
    def main(self) -> ExchangeFit | None:
        """The transport that waves took most seconds of; None without waves."""
        return max(self.fits, key=lambda fit: fit.count * fit.typical[-1], default=None)

    def seconds(self, messages: float, sent_bytes: float) -> float | None:
        """Return what a wave takes whose peers come in time; None while that is not known."""
        fit = self.main
        if fit is None or fit.source == "unknown":
            return None
        return float(fit.coefficients @ (messages, sent_bytes))

    def learn(self, batch: Batch) -> None:
        """Fold in a batch's waves; a job has so many transports at most as a report."""
        if not batch.waves:
            return
        ages = steps_behind_each(self.clock, batch.newest_steps())
        for waves in batch.waves:
            fit = next((fit for fit in self.fits if fit.transport == waves.transport), None)
            if fit is None and len(self.fits) < MAX_WAVE_TRANSPORTS:
                fit = ExchangeFit(transport=waves.transport)
                self.fits.append(fit)
            if fit is not None:
                ranks = [batch.ranks[row] for row in waves.rows]
                fit.learn(ranks, waves.sums_table, ages[waves.rows])

    def advance(self, step: int) -> None:
        """Forget up to ``step``, the newest complete one, and fit anew."""
        for fit in self.fits:
            fit.advance(passed_steps(self.clock, step))
        self.clock = advanced(self.clock, step)

    def restart_clock(self) -> None:
        """A new attempt may go back in steps: its evidence is new all the same."""
        self.clock = None


def agreed_moments(sums: Float64) -> Moments:
    """Return the moments of the ranks, sums [n, N], at the typical one's pace."""
    features = len(WAVE_FEATURES)
    sums = sums[(sums[:, 0] > 0) & (sums[:, 1] > 0)]
    if not len(sums):
        return Moments(num_features=features)
    weights = np.minimum(1.0, MAX_INFLUENCE * np.median(sums[:, 0]) / sums[:, 0])
    moments = Moments((weights @ sums).tolist(), num_features=features)
    for _ in range(_ROUNDS):
        coefficients = solve_nonnegative(moments.gram, moments.projection)
        # The weights cancel y: the projection holds plain sums of features.
        expected = np.maximum(sums[:, -features:] @ coefficients, _TINY)
        ratios = np.log(sums[:, 1] / expected)
        # Where one rank's tiny seconds rule the fit, all others lie far from it, and together.
        ratios -= np.median(ratios)
        limit = max(_FLOOR, _SPREADS * spread(ratios))
        kept = np.abs(ratios) <= limit
        paced = at_pace(sums[kept], np.exp(ratios[kept]), features)
        moments = Moments((weights[kept] @ paced).tolist(), num_features=features)
    return moments
