"""What the API shows of a job: dictionaries ready for JSON, with finite numbers only."""

from dataclasses import asdict
from typing import Any

from libra.attention.cost import FEATURES
from libra.balancer.decide import Decision, policy_coefficients
from libra.balancer.diagnosis import diagnose
from libra.balancer.fits import KindFit
from libra.balancer.state import JobSettings, JobState, PolicyEntry
from libra.balancer.steps import StepRecord

View = dict[str, Any]


def summary_view(
    state: JobState,
    settings: JobSettings,
    decision: Decision | None,
    now_s: float,
) -> View:
    """Return the head line of a job; step figures are of the newest complete step."""
    newest = next(reversed(state.log.current(1)), None)
    age_s = None if state.last_report_s is None else max(0.0, now_s - state.last_report_s)
    return {
        "job": state.name,
        "state": _liveness(age_s, settings),
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
        "recommended": _recommendation(decision),
        "decision": decision.reason if decision else None,
        "last_report_age_seconds": age_s,
        "reports": state.counters.reports,
        "rejected": state.counters.rejected,
        "duplicates": state.counters.duplicates,
        "late": state.counters.late,
        "dropped": state.dropped,
        "incomplete_steps": state.log.incomplete,
        "wasted_seconds": state.log.wasted_seconds,
        "diagnosis": diagnose(state, settings),
    }


def skew_view(state: JobState, last: int) -> View:
    records = _newest(state.log.records, last)
    return {
        "steps": [r.step for r in records],
        "skew": [r.skew for r in records],
        "predicted_skew": [r.predicted_skew for r in records],
        "home_skew": [r.home_skew for r in records],
        "step_seconds": [r.step_seconds for r in records],
        "policy_version": [r.policy_version for r in records],
    }


def ranks_view(state: JobState, settings: JobSettings, last: int) -> View:
    """Return the ranks of the attempt, and their slowdown in its steps."""
    records = state.log.current(last)
    return {
        "steps": [r.step for r in records],
        "ranks": rank_rows(state, settings),
        "slowdown": [r.slowdown.tolist() for r in records],
    }


def rank_rows(state: JobState, settings: JobSettings) -> list[View]:
    newest = next(reversed(state.log.current(1)), None)
    return [
        {
            "rank": info.rank,
            "node": info.node,
            "dp": info.dp,
            "cp": info.cp,
            "pool": info.pool,
            "speed": state.speeds[rank].speed(settings.decide.speeds),
            "speed_steps": state.speeds[rank].steps,
            "speed_spread": state.speeds[rank].spread,
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
    }


def policies_view(state: JobState) -> View:
    return {"policies": [policy_row(entry) for entry in state.policies]}


def policy_row(entry: PolicyEntry) -> View:
    policy = entry.policy
    return {
        "version": policy.version,
        "parent": policy.parent,
        "checksum": policy.checksum,
        "pooling": policy.pooling,
        "reason": policy.reason,
        "created_s": policy.created_s,
        "first_step": entry.first_step,
        "predicted_gain": entry.predicted_gain,
        "coefficients_seconds": policy_coefficients(policy).tolist(),
    }


def step_row(record: StepRecord) -> View:
    return {
        "step": record.step,
        "skew": record.skew,
        "predicted_skew": record.predicted_skew,
        "home_skew": record.home_skew,
        "step_seconds": record.step_seconds,
        "policy_version": record.policy_version,
        "slowdown": record.slowdown.tolist(),
        "sent_bytes": record.sent_bytes,
        "wait_seconds": record.wait_seconds,
        "share": record.wait_share,
    }


def _newest(records: list[StepRecord], last: int) -> list[StepRecord]:
    return records[-last:] if last > 0 else []


def _liveness(age_s: float | None, settings: JobSettings) -> str:
    if age_s is None or settings.stale_after_s <= age_s < settings.finished_after_s:
        return "stale"
    return "active" if age_s < settings.stale_after_s else "finished"


def _recommendation(decision: Decision | None) -> View | None:
    if decision is None or decision.policy is None:
        return None
    return {"reason": decision.reason, "predicted_gain": decision.predicted_gain}


def _fit_row(fit: KindFit) -> View:
    return {
        "kind": asdict(fit.kind),
        "coefficients": fit.model.coef_.tolist(),
        "source": fit.model.source_,
        "count": fit.model.num_observations_,
        "error": fit.error,
    }


def _point_rows(fit: KindFit) -> View:
    features = [point[:-1] for point in fit.points]
    predicted = fit.model.predict(features).tolist() if features else []
    return {"points": [list(point) for point in fit.points], "predicted": predicted}
