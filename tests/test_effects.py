"""A policy's effect is told from noise: false alarms are rare, real differences are seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from libra.balancer.effects import TrialSettings, compare, step_ratios

SETTINGS = TrialSettings()


@pytest.mark.parametrize("tail", ["normal", "heavy"])
def test_noise_is_hardly_ever_worse(tail: str) -> None:
    """Over all looks of a trial without effect, fewer than 1 % find one, however heavy the tail."""
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(400):
        draws = rng.standard_normal(36) if tail == "normal" else rng.standard_t(2, 36)
        skews = 1.05 * np.exp(0.05 * draws)
        before, after = skews[:16].tolist(), skews[16:].tolist()
        looks = [compare(before, after[:look]) for look in SETTINGS.looks]
        false += any(look.worse(SETTINGS) for look in looks)

    assert false < 4


def test_a_difference_is_seen_and_has_a_direction() -> None:
    """Twice the scatter is enough to see; what is better one way round is worse the other."""
    rng = np.random.default_rng(2)
    low = (1.02 + 0.02 * rng.random(16)).tolist()
    high = (1.06 + 0.02 * rng.random(10)).tolist()

    assert compare(low, high).worse(SETTINGS)
    assert compare(high, low).better(SETTINGS)
    assert not compare(low, high).better(SETTINGS)
    assert compare(low, high).change == pytest.approx(1.04, abs=0.01)


def test_a_difference_too_small_to_matter_is_none() -> None:
    """However certain, a change below ``min_effect`` neither condemns nor saves a policy."""
    before = np.linspace(1.0, 1.001, 16).tolist()
    after = np.linspace(1.01, 1.011, 20).tolist()

    assert compare(before, after).p_worse < 1e-6
    assert not compare(before, after).worse(SETTINGS)
    assert not compare(after, before).better(SETTINGS)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_the_test_is_the_textbooks(before: int, after: int, seed: int) -> None:
    """Chances are those of the exact Mann-Whitney test, as scipy has it."""
    rng = np.random.default_rng(seed)
    one, other = rng.random(before), rng.random(after)
    exact = mannwhitneyu(other, one, alternative="greater", method="exact").pvalue

    assert compare(one.tolist(), other.tolist()).p_worse == pytest.approx(exact, rel=1e-9)


def test_equal_figures_prove_nothing() -> None:
    """Constant or tied values, as coarse clocks give, are no evidence."""
    assert compare([1.0] * 16, [1.0] * 20).p_worse > 0.4
    assert compare([0.0] * 16, [0.0] * 20).change == 1.0
    assert compare([1.0, 1.1] * 8, [1.0, 1.1] * 10).p_worse > 0.3


@given(
    st.floats(1e-6, 1e3), st.floats(0, 10), st.lists(st.floats(0.1, 10), min_size=4, max_size=40)
)
def test_steps_that_follow_their_work_are_equal(
    unit_s: float, fixed: float, work: list[float]
) -> None:
    """Steps of a fixed share and one that grows with the work differ by nothing else."""
    seconds = [unit_s * (fixed + own) for own in work]

    ratios = step_ratios(seconds, [unit_s * own for own in work])

    np.testing.assert_allclose(ratios, 1.0, rtol=1e-6)


def test_more_seconds_for_the_same_work_show() -> None:
    """Uneven data hide nothing: 5 % more seconds for each step's work are 5 % in the ratios."""
    rng = np.random.default_rng(3)
    work = np.exp(rng.standard_normal(36))
    seconds = (0.5 + work) * np.where(np.arange(36) < 16, 1.0, 1.05)

    ratios = step_ratios(seconds.tolist(), work.tolist())

    found = compare(ratios[:16].tolist(), ratios[16:].tolist())
    assert found.change == pytest.approx(1.05, abs=0.01)
    assert found.worse(SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("false_alarm", 0.0),
        ("min_effect", 1.0),
        ("settle_steps", -1),
        ("min_before_steps", 1),
        ("min_before_steps", 17),
        ("looks", ()),
        ("looks", (5, 5)),
        ("looks", (1, 5)),
        ("deadline_steps", 20),
    ],
)
def test_settings_name_what_is_wrong(name: str, value: object) -> None:
    """A setting out of range is refused with its name and value."""
    with pytest.raises(ValueError, match=f"{name}="):
        TrialSettings(**{name: value})  # type: ignore[arg-type]
