"""A job's state as the evidence of a decision, and what that decision is."""

import numpy as np

from libra.attention.cost import NUM_FEATURES
from libra.balancer.decide import decide
from libra.balancer.decide_settings import DecideSettings
from libra.balancer.evidence import Decision, Evidence, KindEvidence
from libra.balancer.exchange_choice import choose_exchange
from libra.balancer.history import UnknownPolicyError, body_of, find, fruitless, refusals
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.state import JobState


def newest_decision(state: JobState, settings: DecideSettings) -> Decision | None:
    """Return what the newest evidence calls for, a function of the state alone; None if frozen."""
    if state.mode == "frozen":
        return None
    return decide(_gather(state, settings), state.policy, settings)


def _gather(state: JobState, settings: DecideSettings) -> Evidence:
    """Return what a decision may look at."""
    kinds = [
        KindEvidence(
            name=f"the {fit.kind.direction} kernel ({fit.kind.backend}, {fit.kind.dtype})",
            observations=fit.model.num_observations_,
            error=fit.error,
        )
        for fit in state.fits.in_use()
    ]
    home = [r.features.home for r in state.log.recent() if r.features is not None]
    shape = (0, state.log.world_size, NUM_FEATURES)
    entry = find(state.policies, state.policy.version)
    effect = entry.effect if entry else None
    worse = effect.reason if effect and effect.verdict == "worse" else ""
    return Evidence(
        kinds=kinds,
        coefficients=state.fits.tile_coefficients(),
        home_features=np.stack(home) if home else np.zeros(shape),
        speeds=state.speeds,
        steps_since_policy=state.log.complete - state.published_at,
        exchange=choose_exchange(state),
        setbacks=state.setbacks,
        trial=state.trial.sentence(settings.trial) if state.trial else "",
        restored=_restored(state) if worse else None,
        worse=worse,
        unsettled=bool(
            effect
            and effect.verdict == "unclear"
            and state.log.complete - effect.ended_at < settings.speeds.min_steps
        ),
        fruitless=fruitless(state.policies, settings.trial.min_effect),
        refusals=refusals(state.policies, state.log.complete, settings.refusal_steps),
    )


def _restored(state: JobState) -> Policy:
    """Return the settings that the policy in force has replaced, or home if they are lost."""
    try:
        return body_of(state.policies, state.policy.parent)
    except UnknownPolicyError:
        return HOME_POLICY
