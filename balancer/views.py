"""What the API shows of a job: dictionaries ready for JSON, with finite numbers only."""

from base64 import b64encode
from dataclasses import asdict

import numpy as np
from msgspec import to_builtins

from libra.attention.cost import FEATURES
from libra.balancer.causes import Diagnosis
from libra.balancer.events import View
from libra.balancer.evidence import Decision
from libra.balancer.exchange_model import ExchangeFit
from libra.balancer.kind_fit import KindFit
from libra.balancer.policy_views import recommendation_view, trial_view
from libra.balancer.slowdown_body import permille
from libra.balancer.state import JobSettings, JobState
from libra.balancer.step_record import Float64, StepRecord
from libra.balancer.wire import WAVE_FEATURES

# Slowdowns in one answer.
_MAX_CELLS = 1 << 21
# Steps of the small curve beside a job's name.
_RECENT_STEPS = 32
# Standard deviations to either side that hold 95 % of a normal distribution.
_SIGMAS = 1.96


def summary_view(
    state: JobState,
    settings: JobSettings,
    decision: Decision | None,
    found: Diagnosis,
    now_s: float,
    recommended_pool: int | None = None,
) -> View:
    """Return the head line of a job: its figures, and what is made of them."""
    return figures_view(state, settings, now_s) | {
        "recommended": recommendation_view(decision),
        "decision": decision.reason if decision else None,
        "trial": trial_view(state),
        "diagnosis": found.sentence,
        "cause": found.cause,
        "cause_ranks": list(found.ranks),
        "lost_seconds": found.lost_seconds,
        "recoverable_share": found.recoverable_share,
        "recovered_share": found.recovered_share,
        "recommended_pool": recommended_pool,
        "recent_skew": [round(r.skew, 3) for r in state.log.current(_RECENT_STEPS)],
        "since_step": state.onset.step,
        "since_seconds": state.onset.seconds if state.onset.steps else None,
    }


def figures_view(state: JobState, settings: JobSettings, now_s: float) -> View:
    """Return a job's figures, as fast as metrics need them; a step's are of the newest."""
    newest = next(reversed(state.log.current(1)), None)
    age_s = report_age_s(state, now_s)
    return {
        "job": state.name,
        "state": liveness(age_s, settings),
        "mode": state.mode,
        "attempt": state.log.attempt,
        "world_size": state.log.world_size,
        "ranks_reporting": len(state.ranks),
        "step": newest.step if newest else None,
        "skew": newest.skew if newest else None,
        "home_skew": newest.home_skew if newest else None,
        "predicted_skew": newest.predicted_skew if newest else None,
        "step_seconds": newest.step_seconds if newest else None,
        "policy_version": state.policy.version,
        "policy_checksum": state.policy.checksum,
        "rollbacks": state.rollbacks,
        "last_report_age_seconds": age_s,
        "reports": state.counters.reports,
        "rejected": state.counters.rejected,
        "duplicates": state.counters.duplicates,
        "late": state.counters.late,
        "dropped": state.dropped,
        "set_aside": state.set_aside,
        "incomplete_steps": state.log.incomplete,
        "wasted_seconds": state.log.wasted_seconds,
        "recovered_seconds": state.log.recovered_seconds,
    }


def diagnosis_view(found: Diagnosis) -> View:
    """Return the whole diagnosis."""
    return {**to_builtins(found), "ranks": list(found.ranks)}


def skew_view(state: JobState, last: int) -> View:
    records = _newest(state.log.records, last)
    return {
        "steps": [r.step for r in records],
        "skew": [r.skew for r in records],
        "predicted_skew": [r.predicted_skew for r in records],
        "home_skew": [r.home_skew for r in records],
        "step_seconds": [r.step_seconds for r in records],
        "policy_version": [r.policy_version for r in records],
        "attempt": [r.attempt for r in records],
    }


def ranks_view(state: JobState, settings: JobSettings, last: int) -> View:
    """Return the ranks of the attempt, and their slowdown in its steps."""
    records = rank_records(state, last)
    return {
        "steps": [r.step for r in records],
        "ranks": rank_rows(state, settings),
        "slowdown": [slowdown_row(r) for r in records],
    }


def rank_records(state: JobState, last: int) -> list[StepRecord]:
    """Return the steps of which every rank's slowdown is shown: fewer where ranks are many."""
    return state.log.current(min(last, max(1, _MAX_CELLS // max(1, state.log.world_size))))


def slowdown_row(record: StepRecord) -> list[float]:
    """Return slowdowns [W] with more digits than anyone sees."""
    return [*np.round(record.slowdown.astype(np.float64), 4).tolist()]


def rank_rows(state: JobState, settings: JobSettings) -> list[View]:
    newest = next(reversed(state.log.current(1)), None)
    return [
        {
            "rank": info.rank,
            "node": info.node,
            "dp": info.dp,
            "cp": info.cp,
            "pool": info.pool,
            "pp": info.pp,
            "speed": state.speeds[rank].speed(settings.decide.speeds),
            "speed_steps": state.speeds[rank].steps,
            "speed_spread": state.speeds[rank].spread,
            "doubt": state.doubts.get(rank, state.speeds[rank].doubt),
            "kernel_seconds": float(newest.kernel_seconds[rank]) if newest else None,
            "predicted_seconds": (
                float(newest.predicted_seconds[rank])
                if newest and newest.predicted_seconds is not None
                else None
            ),
        }
        for rank, info in sorted(state.ranks.items())
    ]


def model_view(state: JobState, *, points: bool = True) -> View:
    """Return the fits; ``points`` adds the newest observations and their predictions."""
    kinds = [_fit_row(fit) | (_point_rows(fit) if points else {}) for fit in state.fits.fits]
    return {"features": list(FEATURES), "kinds": kinds}


def exchange_view(state: JobState, last: int) -> View:
    records = _newest(state.log.records, last)
    return {
        "steps": [r.step for r in records],
        "sent_bytes": [r.sent_bytes for r in records],
        "wait_seconds": [r.wait_seconds for r in records],
        "share": [r.wait_share for r in records],
        "fits": [_wave_row(fit) for fit in state.exchange.fits],
    }


def step_row(record: StepRecord) -> View:
    """Return what the event of a step tells.

    ``slowdown_permille`` are little-endian 16-bit integers in base64: a tenth of what thousands
    of ranks would take in JSON, and three digits are more than anyone sees.
    """
    return {
        "step": record.step,
        "skew": record.skew,
        "predicted_skew": record.predicted_skew,
        "home_skew": record.home_skew,
        "step_seconds": record.step_seconds,
        "policy_version": record.policy_version,
        "attempt": record.attempt,
        "slowdown_permille": _packed(record.slowdown),
        "sent_bytes": record.sent_bytes,
        "wait_seconds": record.wait_seconds,
        "share": record.wait_share,
    }


def _packed(slowdown: Float64) -> str:
    return b64encode(permille(slowdown).tobytes()).decode()


def _newest(records: list[StepRecord], last: int) -> list[StepRecord]:
    return records[-last:] if last > 0 else []


def report_age_s(state: JobState, now_s: float) -> float | None:
    """Return the seconds since the newest report, None before the first."""
    return None if state.last_report_s is None else max(0.0, now_s - state.last_report_s)


def liveness(age_s: float | None, settings: JobSettings) -> str:
    """Return a job's state: active, stale or finished."""
    if age_s is None or settings.stale_after_s <= age_s < settings.finished_after_s:
        return "stale"
    return "active" if age_s < settings.stale_after_s else "finished"


def _fit_row(fit: KindFit) -> View:
    return {
        "kind": asdict(fit.kind),
        "coefficients": fit.model.coef_.tolist(),
        "source": fit.model.source_,
        "why": fit.model.why_,
        "count": fit.model.num_observations_,
        "error": fit.error,
    }


def _wave_row(fit: ExchangeFit) -> View:
    return {
        "transport": fit.transport,
        "coefficients": dict(zip(WAVE_FEATURES, fit.coefficients.tolist(), strict=True)),
        "source": fit.source,
        "count": fit.count,
        "error": fit.error,
    }


def _point_rows(fit: KindFit) -> View:
    predicted = fit.points[:, :-1] @ fit.model.coef_
    return {
        "points": fit.points.tolist(),
        "predicted": predicted.tolist(),
        "intervals": _intervals(fit),
        "error_steps": fit.course.steps,
        "error_course": fit.course.values,
    }


def _intervals(fit: KindFit) -> list[list[float]] | None:
    """Return between which values each coefficient lies with 95 %; None before it is measured."""
    if not fit.model.is_calibrated_:
        return None
    margin = _SIGMAS * fit.model.coef_std_
    low, high = np.maximum(fit.model.coef_ - margin, 0.0), fit.model.coef_ + margin
    return np.stack((low, high), axis=1).tolist() if np.isfinite(margin).all() else None
