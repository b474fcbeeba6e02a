"""Since when a job is skewed is told, whatever single steps do."""

from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.onset import UNEVEN, Onset

EVEN_SKEW, HIGH_SKEW = 1.01, 1.3


def follow(pattern: str, *, attempt: int = 0, onset: Onset | None = None) -> Onset:
    """Take in steps of 2 s: ``#`` is uneven, ``.`` even."""
    onset = onset or Onset()
    for step, mark in enumerate(pattern):
        onset.note(attempt, step, HIGH_SKEW if mark == "#" else EVEN_SKEW, 2.0)
    return onset


def test_the_first_uneven_step_is_named() -> None:
    """Not the one at which it was certain; steps and seconds count from it."""
    onset = follow("......#####")
    assert (onset.step, onset.steps, onset.seconds) == (6, 5, 10.0)


def test_single_steps_neither_begin_nor_end_it() -> None:
    """One hiccup is no skew, and one lull no end of it."""
    assert follow("......#....").step is None
    assert follow("...###.####.###").step == 3


def test_it_ends_when_most_steps_are_even() -> None:
    """And the next time it begins anew."""
    assert follow("..######.....").step is None
    assert follow("..######......####").step == 14


def test_a_job_that_is_skewed_from_its_start() -> None:
    """There need not be even steps first."""
    assert follow("###").step == 0


def test_another_attempt_begins_anew() -> None:
    """Its steps are numbered anew, too."""
    even = follow("....", attempt=1, onset=follow("..######"))
    assert even.step is None
    again = follow("#####", attempt=2, onset=follow("..######"))
    assert (again.step, again.steps) == (0, 5)


def test_what_costs_little_is_even() -> None:
    """The limit is that of diagnoses."""
    onset = Onset()
    for step in range(20):
        onset.note(0, step, UNEVEN, 1.0)
    assert onset.step is None


@given(st.text(alphabet="#.", min_size=1, max_size=60))
def test_what_is_told_holds_of_the_steps(pattern: str) -> None:
    """It begins at an uneven step, counts all since, and most of the last five are uneven."""
    onset = follow(pattern)
    newest = pattern[-5:]
    if onset.step is None:
        assert newest.count("#") * 2 <= len(newest)
        return
    assert pattern[onset.step] == "#"
    assert onset.steps == len(pattern) - onset.step
    assert onset.seconds == 2.0 * onset.steps
    assert newest.count("#") * 2 > len(newest)
