"""A rank is called slow only when it is, and uneven data never makes one look slow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def alarms(seed: int, *, world_size: int, noise: float, every: int) -> int:
    """Return how often a rank is called different in 2,000 steps of equal ranks."""
    rng = np.random.default_rng(seed)
    measured = np.exp(noise * rng.standard_normal((2000, world_size)))
    predicted, found = np.ones_like(measured), 0
    speeds: list[RankSpeed] = []
    for end in range(2, len(measured), every):
        recent = slice(max(0, end - 16), end)
        speeds = rank_speeds(predicted[recent], measured[recent], SETTINGS, before=speeds)
        found += any(speed.confirmed for speed in speeds)
    return found


@pytest.mark.parametrize(("world_size", "noise"), [(2, 0.05), (4, 0.1), (8, 0.02)])
def test_equal_ranks_are_never_called_slow(world_size: int, noise: float) -> None:
    """However their steps scatter, equal ranks are not told apart, in any of 10 long jobs."""
    for seed in range(10):
        assert alarms(seed, world_size=world_size, noise=noise, every=8) == 0, f"seed {seed}"


@pytest.mark.soak
@pytest.mark.parametrize(("world_size", "noise"), [(2, 0.05), (4, 0.1), (8, 0.02), (8, 0.1)])
def test_fewer_than_one_long_job_in_a_hundred_has_a_false_alarm(
    world_size: int, noise: float
) -> None:
    """Of 200 jobs of 2,000 steps with equal ranks, at most one ever names a slow rank."""
    seeds = range(200)
    assert sum(alarms(s, world_size=world_size, noise=noise, every=1) > 0 for s in seeds) <= 1


def test_a_speed_is_different_until_it_is_clearly_back() -> None:
    """A rank that was called slow is so until it is half as far from nominal as it takes."""
    slow = [RankSpeed(), RankSpeed(), RankSpeed(measured=0.9, steps=16, confirmed=True)]
    predicted = np.ones((16, 3))
    for speed, expected in ((0.96, True), (0.98, False)):
        measured = predicted / np.array([1.0, 1.0, speed])
        assert rank_speeds(predicted, measured)[2].confirmed is False
        assert rank_speeds(predicted, measured, before=slow)[2].confirmed is expected


def test_speeds_are_clamped_and_a_doubted_one_is_nominal() -> None:
    """However absurd a claim is, the speed lies in 0.25..4, and one in doubt is not acted on."""
    measured = np.ones((16, 4)) * [1.0, 1.0, 1000.0, 0.001]

    speeds = rank_speeds(np.ones((16, 4)), measured)

    assert confirmed(speeds) == [1.0, 1.0, SETTINGS.slowest, SETTINGS.fastest]
    doubted = RankSpeed(measured=0.5, steps=16, confirmed=True, doubt="its peers' steps say no")
    assert doubted.speed(SETTINGS) == 1.0
    assert doubted.differs_from(0.5, SETTINGS)
    assert not doubted.differs_from(1.0, SETTINGS)


def test_of_two_ranks_the_faster_is_the_reference() -> None:
    """One slow rank of two has its speed, and the other is nominal."""
    assert confirmed(simulate([1.0, 1 / 1.5])) == [1.0, pytest.approx(1 / 1.5, rel=0.05)]


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10.0))
def test_what_all_ranks_share_is_no_speed(seed: int, factor: float) -> None:
    """Speeds are the same whatever factor the model is off by, and whatever a step's is."""
    rng = np.random.default_rng(seed)
    predicted = rng.lognormal(0, 1, (16, 4))
    measured = predicted * np.exp(0.05 * rng.standard_normal((16, 4)))
    shared = measured * factor * rng.lognormal(0, 1, (16, 1))

    one, other = rank_speeds(predicted, measured), rank_speeds(predicted, shared)

    assert [s.measured for s in one] == pytest.approx([s.measured for s in other])


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

    expected = RankSpeed(measured=1.0, steps=16, confirmed=False)
    assert rank_speeds(predicted, measured) == [expected] * 4


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
    ("name", "value"),
    [("min_steps", 1), ("min_deviation", 0.0), ("min_spreads", -1.0), ("slowest", 1.0)],
)
def test_settings_name_what_is_wrong(name: str, value: float) -> None:
    """A setting out of range is refused with its name and value."""
    with pytest.raises(ValueError, match=f"{name}={value}: must"):
        SpeedSettings(**{name: value})  # type: ignore[arg-type]
