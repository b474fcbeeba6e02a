"""What the control loop must do in four courses whose answer is known; the long ones are soak."""

from functools import partial

import pytest

from tests.loop_lies import LIES
from tests.loop_scenarios import equal_ranks, harm, lie, slow_rank
from tests.loop_seeds import run_seeds

NAMED_STEPS, EVEN_STEPS, GONE_STEPS = 20, 40, 30
MOST_VERSIONS = 3


@pytest.mark.timeout(600)
def test_a_slowed_rank_is_named_and_answered() -> None:
    """A rank slowed 1.5 times is named within 20 steps and skew is back under 1.10 within 40;
    no other rank is named.
    """
    _check_slow_ranks(8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_slowed_ranks_are_named_and_answered() -> None:
    """The same for two hundred seeds."""
    _check_slow_ranks(200)


@pytest.mark.timeout(600)
def test_equal_ranks_are_left_alone() -> None:
    """Noise names no rank and brings no more than three policies."""
    _check_equal_ranks(8, steps=250, false_alarms=0)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_equal_ranks_are_left_alone_for_long() -> None:
    """Over 2,000 steps, in fewer than one of a hundred seeds noise names a rank, and in none of
    two hundred are there more than three policies.
    """
    _check_equal_ranks(200, steps=2000, false_alarms=1)


@pytest.mark.timeout(600)
def test_harm_is_undone() -> None:
    """A harmful policy that is forced in is gone after 30 steps at the latest."""
    _check_harm(10)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_harm_is_undone_in_fifty_of_fifty() -> None:
    """The same in every one of fifty seeds."""
    _check_harm(50)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", LIES)
def test_a_lie_changes_no_plan(kind: str) -> None:
    """One lying rank leaves the final policy's plans within 1 % of the honest run's, and makes
    no honest rank look slow.
    """
    _check_lies(kind, 2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LIES)
def test_lies_change_no_plan(kind: str) -> None:
    """The same for forty seeds of each lie."""
    _check_lies(kind, 40)


def _check_slow_ranks(seeds: int) -> None:
    found = run_seeds(slow_rank, range(seeds), timeout_s=3500)
    late = {
        seed: own
        for seed, own in enumerate(found)
        if own.named_after is None
        or own.even_after is None
        or own.named_after > NAMED_STEPS
        or own.even_after > EVEN_STEPS
        or own.others
    }
    assert not late


def _check_equal_ranks(seeds: int, *, steps: int, false_alarms: int) -> None:
    run = partial(equal_ranks, steps=steps)
    found = dict(enumerate(run_seeds(run, range(seeds), timeout_s=4 * 3600 - 60)))
    alarms = {seed: own for seed, own in found.items() if own.flagged}
    assert len(alarms) <= false_alarms, alarms
    flapping = {seed: own for seed, own in found.items() if own.versions > MOST_VERSIONS}
    assert not flapping


def _check_harm(seeds: int) -> None:
    found = run_seeds(harm, range(seeds), timeout_s=3500)
    assert all(own.steps_under for own in found), "no harmful policy was found"
    staying = {
        seed: own
        for seed, own in enumerate(found)
        if own.steps_under is None or own.steps_under > GONE_STEPS or own.over_home > 1.0
    }
    assert not staying


def _check_lies(kind: str, seeds: int) -> None:
    found = run_seeds(partial(lie, kind=kind), range(seeds), timeout_s=3500)
    believed = {
        seed: own for seed, own in enumerate(found) if own.over_honest > 1.01 or own.flagged_honest
    }
    assert not believed
