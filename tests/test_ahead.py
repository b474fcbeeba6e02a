"""Cells drawn ahead come in order, a bounded number of them, with the source's errors."""

import threading
from collections.abc import Iterator

import pytest

from libra.agent.ahead import Ahead
from tests.running import wait_for


def test_items_come_in_order_and_again() -> None:
    """All items come once, in order, and a second iteration begins anew."""
    ahead = Ahead(range(100), depth=3)

    assert list(ahead) == list(range(100))
    assert list(ahead) == list(range(100))


def test_no_more_than_depth_are_drawn_ahead() -> None:
    """The source is asked for the ready items and the one in hand, and then no further."""
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for number in range(10):
            drawn.append(number)
            yield number

    items = iter(Ahead(source(), depth=2))

    assert next(items) == 0
    # One was taken, two are ready, and one waits for room.
    wait_for(lambda: len(drawn) == 4)
    assert next(items) == 1
    wait_for(lambda: len(drawn) == 5)
    assert drawn == [0, 1, 2, 3, 4]


def test_the_sources_error_comes_where_its_item_would() -> None:
    """What was drawn before the error is yielded first; then the error itself is raised."""

    def source() -> Iterator[int]:
        yield 1
        raise KeyError("lost")

    items = iter(Ahead(source()))

    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)


def test_the_thread_ends_with_the_iteration() -> None:
    """An iteration that is left early leaves no thread behind."""

    def threads() -> int:
        return sum(thread.name == "libra-ahead" for thread in threading.enumerate())

    before = threads()
    for number in Ahead(iter(int, 1)):
        assert number == 0
        break

    wait_for(lambda: threads() == before)


def test_a_source_that_hangs_is_an_error() -> None:
    """The consumer waits no longer than it was told to."""
    release = threading.Event()

    def source() -> Iterator[int]:
        release.wait(60)
        yield 1

    with pytest.raises(TimeoutError, match=r"timeout_s=0\.05"):
        next(iter(Ahead(source(), timeout_s=0.05)))
    release.set()


def test_bad_settings_are_refused() -> None:
    """Each error names the setting and its value."""
    with pytest.raises(ValueError, match="depth=0"):
        Ahead([], depth=0)
    with pytest.raises(ValueError, match="timeout_s=0"):
        Ahead([], timeout_s=0)
