"""Peers' clocks decide what is believed: no honest rank is doubted, and a false claim is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.balancer.speeds import jumps, log_ratios
from libra.balancer.trust import contradicted, impossible, repeated, scattered

SEEDS = st.integers(0, 2**32 - 1)
RANKS = st.integers(2, 8)


def measured(
    seed: int, world_size: int, *, pace: float, steps: int = 40, begin: int = 20
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nominal and true kernel seconds [S, W] and steps' seconds [S, W] of uneven work; rank
    0 takes ``pace`` times as long from step ``begin`` on.
    """
    rng = np.random.default_rng(seed)
    nominal = rng.lognormal(0, 0.5, (steps, world_size))
    true = nominal * np.exp(0.03 * rng.standard_normal(nominal.shape))
    true[begin:, 0] *= pace
    duration = true.max(axis=1) + 0.5 + 0.01 * rng.standard_normal(steps)
    return nominal, true, np.repeat(duration[:, None], world_size, axis=1)


@settings(max_examples=50, deadline=None)
@given(SEEDS, RANKS, st.floats(1.3, 3.0))
def test_a_true_claim_is_never_contradicted(seed: int, world_size: int, pace: float) -> None:
    """However work falls, a rank that is slow indeed is not contradicted by its peers' steps."""
    nominal, true, durations = measured(seed, world_size, pace=pace)

    against, _ = contradicted(true, nominal, durations, np.array([0]))

    assert not against.any()
    assert not impossible(true, durations).any()


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(2, 6), st.floats(1.5, 3.0), st.booleans())
def test_a_false_claim_is_contradicted(
    seed: int, world_size: int, pace: float, from_start: bool
) -> None:
    """A rank that only says so is contradicted, or its claim would never make it the slowest."""
    nominal, true, durations = measured(seed, world_size, pace=1.0)
    claimed = true.copy()
    claimed[0 if from_start else 20 :, 0] *= pace
    gained = np.maximum(claimed.max(axis=1) - true.max(axis=1), 0)

    against, agreed = contradicted(claimed, nominal, durations, np.array([0]))

    assert not agreed.any()
    assert against[0] or (gained > 0.05).sum() < 10


@given(SEEDS, RANKS)
def test_nobody_computes_longer_than_a_step_lasts(seed: int, world_size: int) -> None:
    """A thousandfold is impossible, whoever says it, and an honest reading is not."""
    _, true, durations = measured(seed, world_size, pace=1.0)
    told = true.copy()
    told[:, 1] *= 1000

    odd = impossible(told, durations)

    assert odd[:, 1].all()
    assert odd.sum() == len(odd)


def test_seconds_that_come_again_are_seen_unless_everybodys_do() -> None:
    """One rank that repeats itself is seen; where most do, it is the clock."""
    past = [np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.5, 3.5])]

    assert repeated(np.array([1.1, 2.0, 3.1]), past).tolist() == [False, True, False]
    assert not repeated(np.array([1.0, 2.0, 3.0]), past).any()
    assert not repeated(np.array([0.0, 1.0, 1.0]), [np.zeros(3)]).any()


@pytest.mark.parametrize("world_size", [2, 4])
def test_scatter_tells_made_up_seconds_and_spares_a_rank_that_becomes_slow(world_size: int) -> None:
    """Random seconds scatter far more than the peers'; one lasting change of pace does not."""
    nominal, true, _ = measured(3, world_size, pace=1.5)
    assert not scattered(*jumps(log_ratios(nominal, true))).any()

    true[:, 1] = np.random.default_rng(1).lognormal(0, 0.5, len(true))

    assert scattered(*jumps(log_ratios(nominal, true)))[1]
    assert not scattered(np.array([np.nan, 0.1]), np.array([0, 40])).any()
