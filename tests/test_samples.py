"""Calls are judged by the thread that reports, once each, and never more of them wait than fit."""

import threading
from itertools import pairwise

import numpy as np
import pytest

from libra.agent.guard import WARM_UP_CALLS, Guard
from libra.agent.samples import JUDGED_ROWS, MAX_POINTS, MAX_WAITING, Samples
from tests.test_meter import FORWARD


def rows(*numbers: int) -> np.ndarray:
    """Return calls of a second each, told apart by their second feature."""
    return np.array([[1.0, number, 2 * number, 3 * number, 1.0, 0.0, 1.0] for number in numbers])


def gathered(samples: Samples, batches: int) -> int:
    """Add batches of two calls; return how many were added."""
    for batch in range(batches):
        samples.add(FORWARD, rows(2 * batch + 1, 2 * batch + 2))
    return 2 * batches


def test_the_thread_that_reports_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as reports are made, adding costs no more than a place in a queue."""
    judges, sift = [], Guard.sift

    def seen(guard: Guard, own: np.ndarray) -> np.ndarray:
        judges.append(threading.current_thread().name)
        return sift(guard, own)

    monkeypatch.setattr(Guard, "sift", seen)
    samples = Samples(0)
    assert samples.admit(FORWARD)
    for _ in range(3):
        gathered(samples, MAX_WAITING)
        reporter = threading.Thread(target=samples.take, name="reporter")
        reporter.start()
        reporter.join()

    assert set(judges) == {"reporter"}


def test_where_no_report_is_made_little_waits() -> None:
    """While the balancer is away the training thread judges now and then, and loses nothing."""
    samples, waiting = Samples(0), 0
    assert samples.admit(FORWARD)
    added = 0
    for _ in range(5 * MAX_WAITING):
        added += gathered(samples, 1)
        waiting = max(waiting, len(samples._waiting))
    (taken,) = samples.take()

    assert waiting == MAX_WAITING
    assert taken.sums[0] == added - WARM_UP_CALLS
    assert (samples.set_aside, samples.dropped) == (WARM_UP_CALLS, 0)


def test_what_finds_no_room_is_counted() -> None:
    """While the other thread judges for long, or was lost in a fork, no more than fits is kept."""
    samples = Samples(0)
    assert samples.admit(FORWARD)
    judge = samples._free.pop()
    added = gathered(samples, MAX_WAITING + 7)
    assert samples.take() == []
    assert (len(samples._waiting), samples.dropped) == (MAX_WAITING, 14)

    samples._free.append(judge)
    (taken,) = samples.take()
    assert taken.sums[0] == added - 14 - WARM_UP_CALLS


def test_points_are_a_uniform_choice() -> None:
    """Every call of a report has the same chance to be a point of it, however they came in."""
    calls, trials = 4 * MAX_POINTS, 600
    times = np.zeros(calls)
    for seed in range(trials):
        samples = Samples(seed)
        assert samples.admit(FORWARD)
        samples.add(FORWARD, rows(*[0] * WARM_UP_CALLS))
        # In the first batch some find room and some do not; then come a few, and many at once.
        cuts = [0, MAX_POINTS + 5, MAX_POINTS + 8, calls]
        for begin, end in pairwise(cuts):
            samples.add(FORWARD, rows(*range(begin, end)))
            assert samples._work_off() == []
        (taken,) = samples.take()
        assert len({point[1] for point in taken.points}) == MAX_POINTS
        times[[int(point[1]) for point in taken.points]] += 1

    # Standard error of a share of 1/4 over the trials; among 128 the furthest stays under 4.5.
    error = np.sqrt(0.25 * 0.75 / trials)
    assert np.abs(times / trials - 0.25).max() < 4.5 * error


def test_a_report_of_many_calls_is_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that all calls share is followed within a part, not lost with the whole."""
    sizes, sift = [], Guard.sift

    def seen(guard: Guard, own: np.ndarray) -> np.ndarray:
        sizes.append(len(own))
        return sift(guard, own)

    monkeypatch.setattr(Guard, "sift", seen)
    samples = Samples(0)
    assert samples.admit(FORWARD)
    for _ in range(3):
        samples.add(FORWARD, rows(*range(JUDGED_ROWS - 1)))
    samples.take()
    assert sizes == [JUDGED_ROWS] * 2 + [JUDGED_ROWS - 3]
