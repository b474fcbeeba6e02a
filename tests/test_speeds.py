"""A rank is called slow only when it is, and uneven data never makes one look slow."""

import numpy as np
import pytest

from libra.balancer.speeds import RankSpeed, SpeedSettings, rank_speeds

SETTINGS = SpeedSettings()


def simulate(
    speeds: list[float], *, steps: int = 16, noise: float = 0.02, seed: int = 0
) -> list[RankSpeed]:
    """Return measured speeds of ranks whose data differ tenfold and whose model is 1.3x off."""
    rng = np.random.default_rng(seed)
    predicted = rng.lognormal(0, 1, size=(steps, len(speeds)))
    jitter = np.exp(noise * rng.standard_normal(predicted.shape))
    return rank_speeds(predicted, 1.3 * predicted * jitter / np.array(speeds))


def confirmed(speeds: list[RankSpeed]) -> list[float]:
    return [speed.speed(SETTINGS) for speed in speeds]


@pytest.mark.parametrize("seed", range(5))
def test_uneven_data_and_a_wrong_factor_leave_speeds_nominal(seed: int) -> None:
    """Neither uneven data nor a model that is off by a factor makes any rank look slow."""
    assert confirmed(simulate([1.0] * 8, seed=seed)) == [1.0] * 8


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_rank_is_found_and_no_other(seed: int) -> None:
    """A slow rank's speed is found to within 5 %, and no other rank is suspected."""
    speeds = confirmed(simulate([1.0, 1.0, 0.7, 1.0, 1.0, 1.0], seed=seed))

    assert speeds[2] == pytest.approx(0.7, rel=0.05)
    assert speeds[:2] + speeds[3:] == [1.0] * 5


def test_too_few_steps_confirm_nothing() -> None:
    """No rank is called slow on fewer than ten steps."""
    assert confirmed(simulate([1.0, 1.0, 0.5], steps=9)) == [1.0] * 3
    assert confirmed(simulate([1.0, 1.0, 0.5], steps=10)) != [1.0] * 3


def test_a_deviation_inside_the_scatter_confirms_nothing() -> None:
    """A rank 12 % slower is worth acting on, but not where steps scatter by 20 %."""
    speeds = [1.0] * 7 + [0.88]

    assert confirmed(simulate(speeds, noise=0.02)) != [1.0] * 8
    assert simulate(speeds, noise=0.2)[7].measured < 1.0 - SETTINGS.min_deviation
    assert confirmed(simulate(speeds, noise=0.2)) == [1.0] * 8


def test_a_small_deviation_confirms_nothing() -> None:
    """A rank 3 % slower, however surely it is, is too little to act on."""
    assert confirmed(simulate([1.0, 1.0, 0.97], noise=0.001)) == [1.0] * 3


def test_one_odd_step_does_not_move_a_speed() -> None:
    """A rank that stalls in one step out of many keeps its speed."""
    predicted = np.ones((16, 4))
    measured = predicted.copy()
    measured[5, 1] = 100.0

    assert rank_speeds(predicted, measured) == [RankSpeed(measured=1.0, steps=16)] * 4


def test_ranks_without_kernels_have_no_say() -> None:
    """A rank or a step without kernels tells nothing of speed, and others are judged without."""
    predicted = np.ones((16, 3))
    measured = np.ones((16, 3))
    measured[:, 0] = 0.0
    measured[4] = 0.0

    speeds = rank_speeds(predicted, measured)

    assert [speed.steps for speed in speeds] == [0, 15, 15]
    assert confirmed(speeds) == [1.0] * 3


def test_a_confirmed_speed_does_not_flap_at_the_threshold() -> None:
    """Back to nominal takes as much evidence as leaving it did."""
    just_below, just_above = (
        RankSpeed(measured=value, steps=16, spread=0.001) for value in (0.949, 0.951)
    )

    assert just_below.differs_from(1.0, SETTINGS)
    assert not just_above.differs_from(0.949, SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"), [("min_steps", 1), ("min_deviation", 0.0), ("min_spreads", -1.0)]
)
def test_settings_name_what_is_wrong(name: str, value: float) -> None:
    """A setting out of range is refused with its name and value."""
    with pytest.raises(ValueError, match=f"{name}={value}: must"):
        SpeedSettings(**{name: value})  # type: ignore[arg-type]
