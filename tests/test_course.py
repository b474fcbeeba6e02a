"""A figure's course covers a job's whole life in a bounded number of points."""

from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.course import MAX_POINTS, Course


def test_a_long_course_stays_small_and_reaches_back() -> None:
    """The longer the job, the further the points are apart; the first step stays."""
    course = Course()
    for step in range(100_000):
        course.note(step, step / 100_000)

    assert MAX_POINTS // 2 <= len(course.steps) <= MAX_POINTS
    assert course.steps[0] == 0
    assert course.steps[-1] >= 100_000 - course.every
    assert course.values == [step / 100_000 for step in course.steps]


def test_what_is_not_known_is_left_out() -> None:
    """A fit has no error before it was judged."""
    course = Course()
    course.note(1, None)
    course.note(2, 0.5)
    assert (course.steps, course.values) == ([2], [0.5])


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 1)), max_size=800))
def test_steps_only_grow(notes: list[tuple[int, float]]) -> None:
    """Whatever attempts go back and do steps again."""
    course = Course()
    for step, value in notes:
        course.note(step, value)
    assert course.steps == sorted(set(course.steps))
    assert len(course.steps) == len(course.values) <= MAX_POINTS
    if notes:
        assert course.steps[-1] <= notes[-1][0]
