"""What a job's newest steps say of each rank: its speed, and whether it is to be believed.

Shapes: S steps, W ranks.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from libra.balancer.medians import column_medians
from libra.balancer.speeds import RankSpeed, SpeedSettings, jumps, log_ratios, rank_speeds
from libra.balancer.state import JobState
from libra.balancer.step_record import StepRecord, price_actual
from libra.balancer.steps import PREDICTED_STEPS
from libra.balancer.trust import contradicted, impossible, scattered

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

SILENT = "no report of it was accepted for a while"
IMPOSSIBLE = "it reports more kernel seconds than its peers' steps lasted"
REPEATED = "it reports the very seconds of earlier steps again"
SCATTERED = "its seconds do not follow from its work as its peers' do"
CONTRADICTED = "its peers' steps do not last as they would if it ran at the speed it reports"

# Of the newest steps, so many must be odd before a rank is doubted at all.
_FEW = 3
_NEWEST = 8
# A doubted rank is believed again when it is clearly no longer odd.
_WAY_BACK = 1.5


def believe(state: JobState, settings: SpeedSettings) -> None:
    """Renew speeds and doubts from the recent steps under the newest model."""
    measured = _measured(state)
    if measured is None:
        state.speeds = (RankSpeed(),) * state.log.world_size
        return
    predicted, kernel = measured
    doubts = _odd_figures(state, predicted, kernel) if state.log.world_size > 1 else {}
    believed = np.ones(state.log.world_size, dtype=np.bool_)
    believed[list(doubts)] = False
    speeds = rank_speeds(predicted, kernel, settings, before=state.speeds, believed=believed)
    claims = [r for r, one in enumerate(speeds) if one.confirmed and r not in doubts]
    if claims and state.log.world_size > 1:
        doubts |= _contradicted(state, claims, believed)
    for rank, doubt in doubts.items():
        speeds[rank] = msgspec.structs.replace(speeds[rank], doubt=doubt)
    state.speeds, state.doubts = tuple(speeds), doubts
    state.fits.doubt(doubts)
    state.log.current(1)[0].doubt(doubts)


def _measured(state: JobState) -> tuple[Float64, Float64] | None:
    """Return predicted and measured kernel seconds [S, W] of the recent steps."""
    predicted, measured = [], []
    for record in state.log.recent():
        assert record.features is not None
        coefficients = state.fits.coefficients(record.features.kinds)
        if coefficients is not None:
            predicted.append(price_actual(record.features, coefficients))
            measured.append(_told(record))
    return (np.stack(predicted), np.stack(measured)) if predicted else None


def _told(record: StepRecord) -> Float64:
    """Return kernel seconds [W], none of silent ranks: what stands for theirs says nothing."""
    seconds = record.kernel_seconds.copy()
    seconds[list(record.missing)] = 0.0
    return seconds


def _predicted(state: JobState) -> tuple[Float64, Float64, Float64]:
    """Return [S, W] kernel seconds as predicted back then and as measured, and steps' durations, of
    as many steps as predictions are kept of.
    """
    records = [r for r in state.log.current(PREDICTED_STEPS) if r.predicted_seconds is not None]
    nothing = np.zeros((0, state.log.world_size))
    return (
        np.array([r.predicted_seconds for r in records]) if records else nothing,
        np.array([r.kernel_seconds for r in records]) if records else nothing,
        np.array([r.rank_seconds for r in records]) if records else nothing,
    )


def _odd_figures(state: JobState, predicted: Float64, kernel: Float64) -> dict[int, str]:
    """Return the ranks whose figures no honest clock can read, and why."""
    records = state.log.current(_NEWEST)
    durations = np.stack([record.rank_seconds for record in records])
    seconds = np.stack([record.kernel_seconds for record in records])
    again = [record.repeated for record in records if record.repeated is not None]
    tests = [
        (IMPOSSIBLE, impossible(seconds, durations).sum(axis=0) >= _FEW),
        (REPEATED, np.sum(again, axis=0) >= _FEW if again else None),
        (SCATTERED, _scattered(state, predicted, kernel)),
    ]
    odd = {
        rank: doubt
        for doubt, ranks in reversed(tests)
        if ranks is not None
        for rank in np.flatnonzero(ranks).tolist()
    }
    return odd | dict.fromkeys(records[-1].missing, SILENT)


def _scattered(state: JobState, predicted: Float64, kernel: Float64) -> Bools:
    """Return [W]: who scatters far more than its peers, over steps or over calls."""
    was = np.ones(kernel.shape[1])
    was[[rank for rank, doubt in state.doubts.items() if doubt == SCATTERED]] = _WAY_BACK
    longer = _predicted(state)
    predicted, kernel = longer[:2] if len(longer[0]) > len(predicted) else (predicted, kernel)
    scatters, counts = jumps(log_ratios(predicted, kernel))
    odd = scattered(was * scatters, counts)
    for fit in state.fits.in_use():
        if fit.model.is_calibrated_:
            odd |= scattered(was * column_medians(fit.scatters.T), fit.ranks.calls.astype(np.int64))
    return odd


def _contradicted(state: JobState, claims: list[int], believed: Bools) -> dict[int, str]:
    """Return the claims of another speed that peers' steps speak against.

    Where the steps decide nothing, as long after a claim began, the verdict of before stands.
    """
    nominal, kernel, durations = _predicted(state)
    kernel = np.where(believed, kernel, nominal)
    against, agreed = contradicted(kernel, nominal, durations, np.array(claims))
    standing = [state.doubts.get(rank) == CONTRADICTED for rank in claims]
    doubted = against | (np.array(standing) & ~agreed)
    return {rank: CONTRADICTED for rank, odd in zip(claims, doubted.tolist(), strict=True) if odd}
