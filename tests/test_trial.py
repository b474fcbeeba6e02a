"""A trial compares like with like: what is not the policy's doing is not held against it.

Shapes: W = 4 ranks; F = 6 features.
"""

import numpy as np
import pytest

from libra.attention.cost import NUM_FEATURES
from libra.balancer.effects import Effect, TrialSettings
from libra.balancer.prices import Prices, pace_table
from libra.balancer.step_record import StepFeatures, StepRecord
from libra.balancer.trial import Trial
from tests.simulated_job import FORWARD

SETTINGS = TrialSettings(settle_steps=0)
PER_PAIR = 1e-9
PRICES = Prices(
    kinds=[FORWARD],
    per_kind=np.array([[0, 0, 0, PER_PAIR, 0, 0]]),
    tile=np.array([0, 0, 0, PER_PAIR, 0, 0]),
)


class Steps:
    """Complete steps of four ranks, made up: ``slowness`` [W] is the machine's doing."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.slowness = np.ones(4)
        self.records: list[StepRecord] = []

    def make(
        self, version: int, *, plan: float = 1.0, other_s: float = 0.1, agreed: bool = True
    ) -> StepRecord:
        """Return a step whose first rank has ``plan`` times what the others have to do."""
        share = np.array([plan, 1.0, 1.0, 1.0])
        total = 1e9 * np.exp(self.rng.standard_normal())
        pairs, home = total * share / share.mean(), total * np.array([2.0, 1.0, 0.5, 0.5])
        kernel = PER_PAIR * pairs * self.slowness * np.exp(0.02 * self.rng.standard_normal(4))
        record = StepRecord(
            step=len(self.records),
            attempt=0,
            policy_version=version,
            agreed=agreed,
            step_seconds=other_s + float(kernel.max()),
            rank_seconds=kernel,
            kernel_seconds=kernel,
            waits=np.zeros(4),
            sent_bytes=0,
            wait_seconds=0.0,
            wait_share=0.0,
            plan_mismatches=0,
            features=StepFeatures(
                kinds=[FORWARD],
                actual=_pairs(pairs)[:, None],
                seconds=kernel[:, None],
                home=_pairs(home),
                home_pairs=np.zeros((4, 0)),
            ),
        )
        self.records.append(record)
        return record


def _pairs(values: np.ndarray) -> np.ndarray:
    features = np.zeros((4, NUM_FEATURES))
    features[:, 3] = values
    return features


def begin(steps: Steps, *, before: int = 16) -> Trial:
    """Return a trial of version 2 against 1, with the steps under 1 noted."""
    trial = Trial(version=2, parent=1, attempt=0, began_at=0, speeds=np.ones(4), prices=PRICES)
    for _ in range(before):
        trial.note(steps.make(1), SETTINGS)
    table = pace_table(steps.records[-16:], PRICES)
    trial.paces = np.median(table, axis=0) if len(table) else None
    return trial


def look(trial: Trial, steps: Steps) -> Effect | None:
    if not trial.due(SETTINGS):
        return None
    return trial.judge(steps.records[-16:], SETTINGS, ended_at=len(steps.records))


def run(trial: Trial, steps: Steps, **changes: float) -> Effect:
    """Run steps under the policy until there is a verdict."""
    for _ in range(20):
        trial.note(steps.make(2, **changes), SETTINGS)  # type: ignore[arg-type]
        effect = look(trial, steps)
        if effect is not None:
            return effect
    raise AssertionError("20 steps bring a verdict")


def test_nothing_changed_is_kept() -> None:
    """A policy without effect is kept after the last look, in 99 of 100 seeds."""
    kept = 0
    for seed in range(100):
        steps = Steps(seed)
        effect = run(begin(steps), steps)
        kept += effect.verdict == "kept" and effect.steps_after == 20

    assert kept >= 99


def test_an_uneven_plan_is_found_at_the_first_look() -> None:
    """A plan that makes one rank take half more is worse, and the effect has its numbers."""
    steps = Steps()
    effect = run(begin(steps), steps, plan=1.5)

    assert (effect.verdict, effect.steps_before, effect.steps_after) == ("worse", 16, 5)
    assert effect.skew_before == pytest.approx(1.02, abs=0.03)
    assert effect.skew_after == pytest.approx(1.5 / 1.125, abs=0.05)
    assert effect.step_change is not None
    assert effect.step_change > 1.1
    assert "It is worse: skew 1.0" in effect.reason


def test_longer_steps_at_the_same_skew_are_worse() -> None:
    """Where the exchange costs more than it saves, step time tells, and skew would not."""
    steps = Steps()
    effect = run(begin(steps), steps, other_s=0.4)

    assert effect.verdict == "worse"
    assert effect.skew_after == pytest.approx(effect.skew_before, abs=0.02)


def test_a_slower_machine_is_no_fault_of_the_policy() -> None:
    """All ranks throttled: the steps are compared at their own pace."""
    steps = Steps()
    trial = begin(steps)
    steps.slowness = np.full(4, 1.3)

    assert run(trial, steps).verdict == "kept"


def test_a_slower_rank_is_no_fault_of_the_policy() -> None:
    """One rank turned slow: skew rose, but not by the plan, so the trial proves nothing."""
    steps = Steps()
    trial = begin(steps)
    steps.slowness = np.array([1.0, 1.0, 1.5, 1.0])
    effect = run(trial, steps)

    assert effect.verdict == "unclear"
    assert effect.reason.startswith("Rank 2 changed its pace by a factor 1.")


def test_a_slower_rank_excuses_no_bad_plan() -> None:
    """Where the model, too, finds the plan uneven, the policy goes whatever ranks do."""
    steps = Steps()
    trial = begin(steps)
    steps.slowness = np.array([1.0, 1.0, 1.5, 1.0])

    assert run(trial, steps, plan=2.5).verdict == "worse"


def test_mixed_and_foreign_steps_do_not_count() -> None:
    """Steps of two versions, of others, and the first under the policy say nothing of it."""
    steps = Steps()
    trial = begin(steps, before=3)
    settings = TrialSettings(settle_steps=2)
    for version, agreed in [(1, False), (2, False), (7, True), (2, True), (2, True), (2, True)]:
        trial.note(steps.make(version, agreed=agreed), settings)
    trial.note(steps.make(1), settings)

    assert (len(trial.before), len(trial.after)) == (3, 1)


@pytest.mark.parametrize("before", [0, 3])
def test_without_steps_before_the_model_stands_in(before: int) -> None:
    """A policy worse than plain Ulysses goes even if nothing was measured before it."""
    steps = Steps()
    trial = begin(steps, before=before)
    effect = run(trial, steps, plan=6.0)

    assert effect.verdict == "worse"
    # Plain Ulysses has 2 : 1 : 0.5 : 0.5, the plan 6 : 1 : 1 : 1.
    assert effect.skew_after is not None
    assert effect.skew_before is not None
    assert effect.skew_after > 1.1 * effect.skew_before


def test_a_disturbed_trial_ends_without_blame() -> None:
    """Given up early, a trial is unclear; only what is certainly the plan's fault counts."""
    steps = Steps()
    trial = begin(steps)
    assert trial.give_up("Restarted", ended_at=16, settings=SETTINGS).verdict == "unclear"
    for _ in range(6):
        trial.note(steps.make(2), SETTINGS)
    assert trial.give_up("Restarted", ended_at=22, settings=SETTINGS).verdict == "unclear"

    bad = begin(steps)
    for _ in range(6):
        bad.note(steps.make(2, plan=1.5), SETTINGS)
    assert bad.give_up("Restarted", ended_at=28, settings=SETTINGS).verdict == "worse"
