"""The guard keeps what is no measure of a kernel's cost out, and lets every real change in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from libra.agent.guard import (
    MAX_REVIEWS,
    MIN_CALLS,
    REVIEW_CALLS,
    WARM_UP_CALLS,
    Guard,
)
from libra.attention.cost import NUM_FEATURES, tile_features

Float64 = NDArray[np.float64]

COST = np.array([2e-5, 3e-7, 1e-7, 4e-9, 1e-6, 1e-7])
FOLDS = (1, 5, 64, 256)


def calls(
    count: int, *, seed: int = 0, median: int = 1000, noise: float = 0.07, cost: Float64 = COST
) -> Float64:
    """Return rows [n, F + 1] of single documents, some of their tiles cut."""
    rng = np.random.default_rng(seed)
    ends = np.clip(rng.lognormal(np.log(median), 1.0, count), 16, 1 << 17).astype(np.int64)
    begins = np.where(rng.random(count) < 0.2, ends // 2 // 128 * 128, 0)
    features = tile_features(begins, ends).astype(np.float64)
    seconds = features @ cost * np.exp(noise * rng.standard_normal(count))
    return np.column_stack((features, seconds))


def sift(guard: Guard, rows: Float64, fold: int = 64) -> Float64:
    """Return what the guard lets through of rows that come in folds of so many."""
    return np.concatenate([guard.sift(rows[i : i + fold]) for i in range(0, len(rows), fold)])


def aside(guard: Guard, rows: Float64, fold: int = 64) -> int:
    """Return how many of these rows are set aside."""
    before = guard.set_aside
    sift(guard, rows, fold)
    return guard.set_aside - before


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("seed", range(3))
def test_hiccups_never_reach_the_moments(fold: int, seed: int) -> None:
    """Slow first calls, preempted kernels and jumps of the clock are out, sound calls are in."""
    rows = calls(1500, seed=seed)
    rng = np.random.default_rng(seed)
    bad = rng.random(len(rows)) < 0.02
    bad[:WARM_UP_CALLS] = True
    rows[bad, -1] *= np.where(rng.random(bad.sum()) < 0.8, rng.uniform(4, 1000, bad.sum()), 1e-3)
    kept = sift(Guard(NUM_FEATURES), rows, fold)

    sound = {row[-1] for row in rows[~bad].tolist()}
    taken = {row[-1] for row in kept.tolist()}
    # Without experience of such features nothing can be judged: the longest documents' tiles.
    assert len(taken - sound) <= 2
    assert len(sound - taken) <= 0.01 * len(sound)


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("factor", [0.2, 1.5, 3.0, 50.0])
def test_a_change_that_all_calls_share_passes_at_once(fold: int, factor: float) -> None:
    """A clock that is throttled is the truth from then on: at most half a window waits for it."""
    guard = Guard(NUM_FEATURES)
    sift(guard, calls(400), fold)
    changed = calls(400, seed=1, cost=factor * COST)

    assert aside(guard, changed, fold) <= (0.01 * 400 if fold >= MIN_CALLS else MIN_CALLS)
    assert aside(guard, calls(400, seed=2, cost=factor * COST), fold) <= 4


@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
def test_the_guard_yields_to_a_change_that_some_tiles_feel(short: bool) -> None:
    """What costs another multiple only for short, or long, tiles is let in after a while."""
    guard = Guard(NUM_FEATURES)
    sift(guard, calls(1000))

    def change(seed: int) -> Float64:
        rows = calls(REVIEW_CALLS, seed=seed)
        tokens = rows[:, 1]
        rows[(tokens < 500) if short else (tokens > 2000), -1] *= 4.0
        return rows

    first = aside(guard, change(100))
    for seed in range(MAX_REVIEWS + 1):
        sift(guard, change(seed))
    assert first > 0.1 * REVIEW_CALLS
    assert aside(guard, np.concatenate([change(seed) for seed in range(50, 60)])) <= 10


def test_the_first_calls_are_out_whatever_they_compute() -> None:
    """A warm-up on tiles like no later ones cannot be judged by those: it is out all the same."""
    rows = calls(200, median=100)
    rows[:2, :-1] = tile_features(0, np.array([50_000, 70_000]))
    rows[:2, -1] = 5 * rows[:2, :-1] @ COST
    kept = sift(Guard(NUM_FEATURES), rows)

    assert len(kept) > 190
    assert kept[:, 1].max() < 50_000


def test_what_nobody_has_seen_passes() -> None:
    """Documents far longer than any before are not refused for what a model guesses of them."""
    guard = Guard(NUM_FEATURES)
    # Nothing here tells what rows of long documents cost.
    cost = COST + np.array([0, 0, 0, 0, 0, 1e-3])
    short = tile_features(0, np.arange(20, 180)).astype(np.float64)
    sift(guard, np.column_stack((short, short @ cost)))
    long = tile_features(0, np.array([30_000, 60_000, 90_000])).astype(np.float64)

    assert aside(guard, np.column_stack((long, long @ cost))) == 0


@pytest.mark.parametrize("seed", range(12))
def test_bad_readings_among_the_first_spoil_nothing_after(seed: int) -> None:
    """A jump of the clock rules any fit that it is part of: it is left out of the first one."""
    guard = Guard(NUM_FEATURES)
    rows = calls(WARM_UP_CALLS + MIN_CALLS, noise=0.02, seed=seed)
    rows[[5, 9, 12], -1] = 1e-6
    kept = guard.sift(rows)

    # One on a tile like no other may pass: nothing says that it is wrong.
    assert (kept[:, -1] <= 1e-6).sum() <= 1
    assert len(kept) <= MIN_CALLS - 2
    assert aside(guard, calls(300, seed=seed + 100)) <= 3


def test_calls_wait_until_they_can_be_judged() -> None:
    """The first calls are reported as soon as there are enough to tell which of them are sound."""
    guard = Guard(NUM_FEATURES)
    rows = calls(WARM_UP_CALLS + MIN_CALLS, noise=0.0)
    rows[WARM_UP_CALLS + 3, -1] *= 100

    assert len(sift(guard, rows[:-1], fold=1)) == 0
    kept = guard.sift(rows[-1:])

    assert len(kept) == MIN_CALLS - 1
    assert guard.set_aside == WARM_UP_CALLS + 1


ROWS = st.lists(
    st.tuples(
        *[st.integers(0, 2**41)] * NUM_FEATURES,
        st.floats(0, 3600) | st.sampled_from([0.0, 1e-9, 3600.0]),
    ),
    max_size=80,
)


@given(st.lists(ROWS, max_size=6))
def test_any_figures_are_sifted_and_counted(folds: list[list[tuple[float, ...]]]) -> None:
    """Nothing raises, nothing is lost or made up, and what is kept is kept in order."""
    guard = Guard(NUM_FEATURES)
    given_rows, kept = [], []
    for fold in folds:
        rows = np.array(fold, dtype=np.float64).reshape(-1, NUM_FEATURES + 1)
        given_rows += rows.tolist()
        kept += guard.sift(rows).tolist()

    waiting = len(guard._waiting)
    assert len(kept) + guard.set_aside + waiting == len(given_rows)
    remaining = iter(given_rows)
    assert all(row in remaining for row in kept)
