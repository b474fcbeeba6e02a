"""How many waves, and which cells stay home: decided by what the exchange costs, not by constant.

More waves hide more, since the first comes sooner and the others travel while kernels run, and
cost more messages. A cell is worth its exchange when it gains more than the exchange takes in
seconds that no kernel hides.

How a pass of attention goes, forward or backward, is taken from the operator: half of the own
tiles run while the first wave travels, each following wave travels while the one before is
computed, and the other half runs while the last results return. Pure.

Shapes: S recent steps, W ranks, F features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.plan import MIN_GAIN_PERMILLE, PlanSettings
from libra.balancer.exchange_model import ExchangeFit
from libra.balancer.state import JobState
from libra.balancer.step_record import StepRecord

Float64 = NDArray[np.float64]

MIN_STEPS = 8
MAX_WAVES = 4
MAX_ERROR = 0.5
MAX_MIN_GAIN_PERMILLE = 500
# Fewer seconds saved, as a share of the slowest rank's kernels, do not call for other waves.
MIN_SAVING = 0.005
# A threshold that differs by less, in itself and of what is in force, stays.
_MIN_CHANGE_PERMILLE = 5
_MIN_CHANGE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeChoice:
    """What a policy should say of the exchange; what is in force where that does as well.

    Attributes:
        waves: as ``Policy.waves``; 0 leaves it to the sampler.
        min_gain_permille: as ``Policy.min_gain_permille``.
        exposed_seconds: of a step, what no kernel hides of the exchange under this choice.
        reason: why, with the numbers.
    """

    waves: int
    min_gain_permille: int
    exposed_seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeLoad:
    """What an average rank's passes of attention come to, in which tiles move.

    Attributes:
        passes: of a step, rank by rank.
        messages: of a wave.
        message_seconds, byte_seconds: of a message, and of all the bytes that a pass sends away.
        kernel_seconds: of a pass.
        received_share: of a receiving rank's kernel seconds, those on others' tiles.
        waves: what bytes are divided among now.
    """

    passes: float
    messages: float
    message_seconds: float
    byte_seconds: float
    kernel_seconds: float
    received_share: float
    waves: int

    def exposed_seconds(self, waves: int) -> float:
        """Return what kernels would not hide of a step's exchange in so many waves."""
        wave = self.messages * self.message_seconds + self.byte_seconds / waves
        received = self.received_share * self.kernel_seconds
        half = (self.kernel_seconds - received) / 2
        ends = 2 * max(0.0, wave - half)
        between = (waves - 1) * max(0.0, wave - received / waves)
        return self.passes * (ends + between)


def choose_exchange(state: JobState) -> ExchangeChoice | None:
    """Return the choice of waves and threshold; None while there is too little evidence.

    Evidence are waves that were measured, and steps under the pooling policy in force in which
    tiles moved.
    """
    fit, coefficients = state.exchange.main, state.fits.tile_coefficients()
    if not state.policy.pooling or fit is None or fit.source == "unknown" or coefficients is None:
        return None
    if fit.error is None or fit.error > MAX_ERROR or not fit.typical.all():
        return None
    records = [
        record
        for record in state.log.recent()
        if record.agreed
        and record.policy_version == state.policy.version
        and record.sent_bytes > 0
        and record.kernel_seconds.any()
    ]
    if len(records) < MIN_STEPS:
        return None
    load = measure_load(records, fit, coefficients, _waves_now(state))
    waits = float(np.mean([np.median(record.waits) for record in records]))
    slowest = float(np.mean([record.kernel_seconds.max() for record in records]))
    return decide_exchange(
        load,
        wait_seconds=waits,
        slowest_seconds=slowest,
        waves=state.policy.waves,
        min_gain_permille=state.policy.min_gain_permille,
    )


def measure_load(
    records: Sequence[StepRecord], fit: ExchangeFit, coefficients: Float64, waves: int
) -> ExchangeLoad:
    """Return the load of steps that keep their features, with [F] seconds of a tile's."""
    messages, wave_bytes, _ = fit.typical.tolist()
    message_seconds, byte_seconds = fit.coefficients.tolist()
    sent = float(np.mean([record.sent_bytes for record in records]))
    kernels = float(np.mean([record.kernel_seconds.mean() for record in records]))
    # In each wave of a pass some ranks send tiles and the others results: one message's worth each.
    passes = sent / (wave_bytes * waves * len(records[0].kernel_seconds))
    home = np.stack([r.features.home @ coefficients for r in records if r.features is not None])
    surplus = np.maximum(home - home.mean(axis=1, keepdims=True), 0.0).sum()
    # About half of the ranks receive what the others have too much.
    share = min(1.0, 2 * float(surplus / home.sum())) if home.sum() > 0 else 0.0
    return ExchangeLoad(
        passes=passes,
        messages=messages,
        message_seconds=message_seconds,
        byte_seconds=byte_seconds * wave_bytes * waves,
        kernel_seconds=kernels / passes,
        received_share=share,
        waves=waves,
    )


def decide_exchange(
    load: ExchangeLoad,
    *,
    wait_seconds: float,
    slowest_seconds: float,
    waves: int,
    min_gain_permille: int,
) -> ExchangeChoice:
    """Return the choice for a load.

    Args:
        load: of the steps to decide by.
        wait_seconds: a step's exposed waits, of the median rank; the exchange takes no more.
        slowest_seconds: a step's kernel seconds of the slowest rank.
        waves, min_gain_permille: what the policy in force says.
    """
    now = load.exposed_seconds(load.waves)
    scale = min(1.0, wait_seconds / now) if now > 0 else 1.0
    best = min(range(1, MAX_WAVES + 1), key=lambda count: (load.exposed_seconds(count), count))
    saved = scale * (now - load.exposed_seconds(best))
    if saved > MIN_SAVING * slowest_seconds:
        chosen, exposed = best, scale * load.exposed_seconds(best)
        why = (
            f"Exchange in {best} waves instead of {load.waves}: kernels would hide all but "
            f"{exposed:.3g} s of a step, not all but {scale * now:.3g} s."
        )
    else:
        chosen, exposed = waves, scale * now
        why = (
            f"Exchange in {load.waves} waves as now: another number would save "
            f"{max(saved, 0.0):.3g} s of a step."
        )
    threshold, also = _threshold(exposed, slowest_seconds, min_gain_permille)
    return ExchangeChoice(
        waves=chosen,
        min_gain_permille=threshold,
        exposed_seconds=exposed,
        reason=f"{why} {also}",
    )


def _threshold(exposed: float, slowest: float, current: int) -> tuple[int, str]:
    share = 1000 * exposed / slowest if slowest > 0 else 0.0
    wanted = min(max(math.ceil(share), MIN_GAIN_PERMILLE), MAX_MIN_GAIN_PERMILLE)
    costs = f"the exposed exchange costs {share / 10:.3g} % of the slowest rank's kernel time"
    if abs(wanted - current) <= max(_MIN_CHANGE_PERMILLE, _MIN_CHANGE * current):
        return current, f"Cells stay home below a gain of {current / 10:g} % as now: {costs}."
    return wanted, f"Cells stay home below a gain of {wanted / 10:g} %: {costs}."


def _waves_now(state: JobState) -> int:
    # What a sampler uses of its own accord is not reported; it rarely is another than this.
    return state.policy.waves or PlanSettings().waves
