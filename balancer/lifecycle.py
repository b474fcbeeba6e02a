"""A policy's life in a job: put in force, tried, judged, and brought back.

Shapes: W ranks.
"""

import msgspec
import numpy as np

from libra.balancer.effects import Effect, TrialSettings
from libra.balancer.evidence import Decision, Topic
from libra.balancer.history import (
    MAX_POLICIES,
    PolicyEntry,
    UnknownPolicyError,
    body_of,
    find,
    version_before,
    with_decision,
)
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.prices import Prices, pace_table
from libra.balancer.speeds import Float64
from libra.balancer.state import JobState
from libra.balancer.trial import Trial


def put_in_force(
    state: JobState,
    policy: Policy,
    now_s: float,
    *,
    topic: Topic | None = None,
    predicted_gain: float | None = None,
    restores: int | None = None,
) -> PolicyEntry:
    """Publish a policy: give it the next version and the time, and end what was on trial.

    Agents follow versions upwards only, so the next one is above all that they were heard to run.
    """
    replaced = state.policy.version
    version = max(replaced, state.heard_version) + 1
    if state.trial is not None:
        reason = f"Replaced by policy {version} before it was judged."
        end_trial(state, _unclear(state, reason))
    state.policy = msgspec.structs.replace(
        policy, version=version, parent=replaced, created_s=now_s
    )
    entry = PolicyEntry(
        policy=state.policy, predicted_gain=predicted_gain, topic=topic, restores=restores
    )
    state.policies = [*state.policies, entry][-MAX_POLICIES:]
    state.published_at = state.log.complete
    return entry


def begin_trial(state: JobState, speeds: Float64, settings: TrialSettings) -> None:
    """Try the policy in force against the one before it; ``speeds`` [W] are those believed."""
    records = state.log.recent()
    trial = Trial(
        version=state.policy.version,
        parent=state.policy.parent,
        attempt=state.log.attempt,
        began_at=state.log.complete,
        speeds=speeds,
        doubted=tuple(sorted(state.doubts)),
        drift_step=_drift_step(state),
        prices=_prices(state),
    )
    if trial.prices is not None:
        table = pace_table(records, trial.prices)
        trial.paces = np.median(table, axis=0) if len(table) else None
    for record in records:
        trial.note(record, settings)
    state.trial = trial


def follow_trial(state: JobState, speeds: Float64, settings: TrialSettings) -> PolicyEntry | None:
    """Judge the policy on trial by the steps so far; return its entry if that ends the trial."""
    trial, ended_at = state.trial, state.log.complete
    if trial is None:
        return None
    effect = None
    disturbance = _disturbance(state, trial, speeds, settings)
    if disturbance:
        effect = trial.give_up(disturbance, ended_at=ended_at, settings=settings)
    elif trial.due(settings):
        effect = trial.judge(state.log.recent(), settings, ended_at=ended_at)
    if effect is None and ended_at - trial.began_at >= settings.deadline_steps:
        why = f"Too few steps under it within {settings.deadline_steps}"
        effect = trial.judge(state.log.recent(), settings, ended_at=ended_at)
        effect = effect or trial.give_up(why, ended_at=ended_at, settings=settings)
    return end_trial(state, effect) if effect else None


def end_trial(state: JobState, effect: Effect) -> PolicyEntry | None:
    """Note what the trial came to; a policy that proved itself ends a row of rollbacks."""
    assert state.trial is not None
    entry = find(state.policies, state.trial.version)
    state.trial = None
    if effect.verdict == "kept":
        state.setbacks = 0
    if entry is not None:
        entry.effect = effect
    return entry


def count_rollback(state: JobState, entry: PolicyEntry | None) -> None:
    """Note that a policy was rolled back because it measured worse."""
    state.rollbacks += 1
    state.setbacks += 1
    if entry is not None and entry.effect is not None:
        entry.effect = msgspec.structs.replace(entry.effect, verdict="rolled back")


def log_decision(state: JobState, decision: Decision | None) -> None:
    """Keep a decision that is about something else than the one before."""
    if decision is not None:
        newest = next(reversed(state.log.current(1)), None)
        step = newest.step if newest else None
        state.decisions = with_decision(state.decisions, decision, step)


def earlier(state: JobState, version: int | None) -> tuple[int, Policy]:
    """Return a version to go back to and its settings; by default what was in force before.

    Raises ``UnknownPolicyError`` where there is none.
    """
    current = state.policy.version
    if version is None and current == HOME_POLICY.version:
        raise UnknownPolicyError("to_version=None: nothing was published yet to go back from")
    target = version_before(state.policies, current) if version is None else version
    body = body_of(state.policies, target)
    if len(body.speeds_permille) not in (0, state.log.world_size):
        # Of another number of ranks: they would be nobody's.
        body = msgspec.structs.replace(body, speeds_permille=())
    return target, body


def _prices(state: JobState) -> Prices | None:
    kinds = [fit.kind for fit in state.fits.fits if fit.model.is_calibrated_]
    per_kind, tile = state.fits.coefficients(kinds), state.fits.tile_coefficients()
    if per_kind is None or tile is None:
        return None
    return Prices(kinds=kinds, per_kind=per_kind.copy(), tile=tile.copy())


def _disturbance(
    state: JobState, trial: Trial, speeds: Float64, settings: TrialSettings
) -> str | None:
    """Say what changed besides the policy, so that the steps before are no measure any more."""
    if state.log.attempt != trial.attempt:
        return "The job was restarted meanwhile"
    if tuple(sorted(state.doubts)) != trial.doubted:
        return "Other ranks are in doubt than at its beginning"
    if _drift_step(state) != trial.drift_step:
        return "Kernels drifted meanwhile"
    if len(speeds) != len(trial.speeds):
        return None
    moved = np.abs(np.log(speeds / trial.speeds))
    rank = int(moved.argmax()) if moved.size else 0
    if moved.size and moved[rank] > np.log1p(settings.min_rank_change):
        return f"Rank {rank} went from speed {trial.speeds[rank]:.2f} to {speeds[rank]:.2f}"
    return None


def _drift_step(state: JobState) -> int | None:
    drifts = state.fits.drifts
    return int(drifts[-1].step) if drifts else None


def _unclear(state: JobState, reason: str) -> Effect:
    return Effect(verdict="unclear", reason=reason, ended_at=state.log.complete)
