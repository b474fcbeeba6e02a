"""A lasting change of costs is seen in a few steps, and noise is no change."""

import numpy as np
import pytest

from libra.balancer.drift import Cusum


def alarms(values: np.ndarray, floor: float = 0.01) -> list[tuple[int, float]]:
    """Return (step, shift) of every alarm; the test begins anew after each."""
    found, test = [], Cusum(floor=floor)
    for step, value in enumerate(values.tolist()):
        shift = test.watch(value)
        if shift is not None:
            found.append((step, shift))
            test = Cusum(floor=floor)
    return found


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.1])
def test_noise_is_no_change(noise: float) -> None:
    """In 2,000 steps of noise fewer than one job in a hundred sees a change."""
    seeds = 100
    wrong = sum(
        bool(alarms(noise * np.random.default_rng(seed).standard_normal(2000)))
        for seed in range(seeds)
    )
    assert wrong <= seeds // 100


@pytest.mark.parametrize("factor", [1.3, 1 / 1.3])
@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_a_throttled_clock_is_seen_within_ten_steps(noise: float, factor: float) -> None:
    """A change by 1.3x is seen within ten steps, with its size, in every one of 50 seeds."""
    for seed in range(50):
        values = noise * np.random.default_rng(seed).standard_normal(60)
        values[40:] += np.log(factor)
        (step, shift), *_ = alarms(values)
        assert 40 < step < 50
        assert shift == pytest.approx(np.log(factor), abs=0.02 + 2 * noise)


def test_one_odd_step_is_no_change() -> None:
    """A step that takes a hundred times as long, once, resets nothing."""
    values = 0.01 * np.random.default_rng(0).standard_normal(200)
    values[[50, 120]] = np.log(100.0)

    assert alarms(values) == []


def test_a_lasting_offset_is_no_change() -> None:
    """A model that is always off by the same factor has not just changed."""
    values = 0.3 + 0.01 * np.random.default_rng(0).standard_normal(500)

    assert alarms(values) == []
