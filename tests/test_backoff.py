"""Failures are met with patience: growing delays, a bound, an open breaker, few words."""

import math
import random

import pytest

from libra.agent.backoff import OPEN_AFTER, Backoff


def test_delays_double_up_to_the_bound_and_start_anew() -> None:
    """Each delay lies between half and the whole of its step; success forgets the failures."""
    backoff = Backoff("It", rng=random.Random(0))
    delays = [backoff.failed("no") for _ in range(8)]

    for delay, whole in zip(delays, [1, 2, 4, 8, 30, 30, 30, 30], strict=True):
        assert whole / 2 <= delay <= whole
    backoff.succeeded()
    assert backoff.failed("no") <= 1


def test_ranks_do_not_retry_in_step() -> None:
    """The same failure of many ranks is followed by as many different delays."""
    assert len({Backoff("It").failed("no") for _ in range(20)}) == 20


def test_the_peer_may_ask_for_more_time_but_not_for_ever() -> None:
    """``Retry-After`` lengthens a delay, to the bound at most; ranks do not return together."""
    asked = [Backoff("It").failed("busy", retry_after_s=20.0) for _ in range(100)]
    endless = [Backoff("It").failed("busy", retry_after_s=math.inf) for _ in range(100)]

    assert 20.0 <= min(asked) < 21.0
    assert 24.0 < max(asked) <= 25.0
    assert 22.5 <= min(endless) < 24.0
    assert 28.0 < max(endless) <= 30.0


def test_an_outage_is_told_twice(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line when the breaker opens and one when it closes."""
    caplog.set_level("INFO", "libra.agent.backoff")
    backoff = Backoff("It")
    for _ in range(OPEN_AFTER + 10):
        backoff.failed("no answer")
    assert backoff.open
    backoff.succeeded()

    assert not backoff.open
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "no answer" in caplog.text
