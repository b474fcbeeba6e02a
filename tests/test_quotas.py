"""Quotas: nobody gets more than their rate for long, and the table of senders stays small."""

from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.access_settings import AccessSettings
from libra.balancer.quotas import Buckets

Gaps = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 50)), max_size=60)


@given(Gaps)
def test_nobody_gets_more_than_burst_and_rate(asks: list[tuple[float, float]]) -> None:
    """Whatever someone asks for, they get at most a burst, the rate since, and one ask beyond."""
    buckets = Buckets(2.0, 10.0)
    now_s = got = largest = 0.0
    for gap_s, units in asks:
        now_s += gap_s
        if buckets.wait_s("a", now_s) == 0:
            buckets.take("a", units, now_s)
            got, largest = got + units, max(largest, units)

        assert got <= 10.0 + 2.0 * now_s + largest + 1e-6


@given(Gaps)
def test_waiting_as_told_is_enough(asks: list[tuple[float, float]]) -> None:
    """Who comes back after the time that they were told is let in."""
    buckets = Buckets(2.0, 10.0)
    now_s = 0.0
    for _, units in asks:
        now_s += buckets.wait_s("a", now_s)
        assert buckets.wait_s("a", now_s) == 0
        buckets.take("a", units, now_s)


def test_senders_do_not_pay_for_each_other() -> None:
    """One that has nothing left leaves the others theirs; a clock that goes back gives nothing."""
    buckets = Buckets(1.0, 1.0)
    buckets.take("a", 5.0, 100.0)

    assert buckets.wait_s("a", 100.0) > 3
    assert buckets.wait_s("a", 50.0) > 3
    assert buckets.wait_s("b", 100.0) == 0


def test_made_up_senders_take_no_memory() -> None:
    """The table forgets whoever asked longest ago."""
    buckets = Buckets(1.0, 1.0, max_senders=8)
    for number in range(1000):
        buckets.take(number, 1.0, 0.0)

    assert len(buckets) == 8
    assert buckets.wait_s(999, 0.0) > 0


def test_a_large_job_is_far_below_the_defaults() -> None:
    """1,250 nodes that report each second, and 10,000 ranks that poll, under one token."""
    access = AccessSettings()
    requests, size = (
        Buckets(rate, 5 * rate) for rate in (access.quota_requests_per_s, access.quota_bytes_per_s)
    )
    for second in range(60):
        for _ in range(1250 + 10_000 // 60):
            assert requests.wait_s("a", second) == size.wait_s("a", second) == 0
            requests.take("a", 1.0, second)
            size.take("a", 100_000.0, second)
