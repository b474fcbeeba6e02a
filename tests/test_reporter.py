"""What the meter saw reaches the balancer once and in order, or is counted as lost."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from libra.agent.background import Background
from libra.agent.channel import Channel
from libra.agent.connection import MAX_ANSWER_BYTES
from libra.agent.direct import Direct
from libra.agent.guard import MIN_CALLS, WARM_UP_CALLS
from libra.agent.meter import StepMeter
from libra.agent.reporter import MAX_REPORT_STEPS, Reporter
from libra.agent.settings import AgentSettings
from libra.balancer.wire import Report, StepTotals
from tests.balancers import (
    ACCEPTED,
    TRICKLE,
    Reply,
    Request,
    ToldBalancer,
    delivered,
    eventually,
)
from tests.layouts import two_sequence_layout
from tests.test_meter import FORWARD, exchange, note


def totals(step: int) -> StepTotals:
    ones = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    return StepTotals(step=step, policy_version=0, seconds=1.0, kernels=[], home_features=ones)


def settings(url: str, **changes: Any) -> AgentSettings:
    """Return settings with a quick pace and a deadline that no test meets."""
    quick = {"interval_s": 0.02, "first_retry_s": 0.02, "max_retry_s": 0.1}
    quick |= {"connect_timeout_s": 60.0, "timeout_s": 60.0}
    return AgentSettings(balancer=url, job="job", world_size=4, rank=2, **{**quick, **changes})


@contextlib.contextmanager
def reporting(
    url: str,
    meter: StepMeter | None = None,
    *,
    pushed: int = 0,
    attached: bool = True,
    **changes: Any,
) -> Iterator[Reporter]:
    """Run a reporter on a thread of its own, after so many steps; flush it at the end."""
    own = settings(url, **changes)
    channel = Channel(own)
    reporter = Reporter(own, meter or StepMeter(), Direct(own, channel))
    reporter.attached = attached
    for step in range(pushed):
        reporter.push(totals(step))

    async def last() -> None:
        try:
            await reporter.flush()
        finally:
            await channel.close()

    background = Background(reporter.run, last=last, last_timeout_s=60.0)
    background.start()
    try:
        yield reporter
    finally:
        assert background.stop(90.0)


def reports(balancer: ToldBalancer) -> list[Report]:
    return delivered(balancer.requests)


def steps(balancer: ToldBalancer) -> list[int]:
    return [step.step for report in reports(balancer) for step in report.steps]


def came(balancer: ToldBalancer, step: int) -> bool:
    return step in steps(balancer)


class Failing:
    """Answer the first ``times`` requests with a failure, then accept."""

    def __init__(self, failure: Reply, times: int) -> None:
        self.failure = failure
        self.left = times

    def __call__(self, request: Request) -> Reply:
        self.left -= 1
        return self.failure if self.left >= 0 else Reply()


def test_steps_and_moments_arrive_with_who_sent_them() -> None:
    """A report carries job, rank, its place and what both the ring and the meter hold."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    for _ in range(WARM_UP_CALLS + MIN_CALLS):
        note(meter, (1, 2, 3, 4, 5, 6), wall_s=1.0)
        exchange(meter, 1000, wait_s=1.0)
    meter.end_step()
    with (
        ToldBalancer(lambda _: Reply()) as balancer,
        reporting(balancer.url, meter, pp_rank=3) as reporter,
    ):
        reporter.push(totals(1))
        reporter.push(totals(2))
        assert eventually(lambda: steps(balancer) == [1, 2])

    first = reports(balancer)[0]
    assert (first.job, first.rank, first.world_size, first.sequence) == ("job", 2, 4, 1)
    assert [(m.kind, m.sums[0], m.points[0][:6]) for m in first.moments] == [
        (FORWARD, float(MIN_CALLS), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    ]
    assert first.set_aside == WARM_UP_CALLS
    assert [wave.transport for wave in first.waves] == ["gloo"]
    assert first.coordinates.pp == 3
    assert balancer.requests[0].path == "/api/v1/jobs/job/reports"
    assert balancer.requests[0].headers["content-type"] == "application/msgpack"


@pytest.mark.fault
@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=500),
        Reply(status=503),
        Reply(status=429, headers={"Retry-After": "0"}),
        Reply(status=202, body=b"<html>not a balancer</html>"),
        Reply(status=200),
        Reply(status=302, headers={"Location": "/elsewhere"}),
        Reply(raw=b""),
        Reply(raw=b"\x00\xffgarbage\r\n\r\n"),
        Reply(raw=b"HTTP/1.1 202 Said\r\nContent-Length: 100\r\n\r\n{"),
    ],
    ids=["500", "503", "429", "202-html", "200", "302", "cut", "garbage", "short"],
)
def test_a_failed_report_is_sent_again_unchanged(failure: Reply) -> None:
    """Retries are byte for byte the same under one sequence number; news waits for its turn."""
    with (
        ToldBalancer(Failing(failure, times=2)) as balancer,
        reporting(balancer.url) as reporter,
    ):
        reporter.push(totals(1))
        assert eventually(lambda: len(balancer.requests) >= 1)
        reporter.push(totals(2))
        # Once one is accepted so are all that come later.
        assert eventually(lambda: reporter.sent >= 1 and came(balancer, 2))

    first, *_ = bodies = [request.body for request in balancer.asked("POST")]
    assert bodies[:3] == [first] * 3
    sequences = [report.sequence for report in reports(balancer)]
    assert sequences == list(range(1, len(sequences) + 1))
    assert steps(balancer) == [1, 2]
    assert reporter.dropped == 0


@pytest.mark.fault
def test_an_outage_loses_nothing_that_the_ring_can_hold() -> None:
    """Steps of an outage arrive after it, each once, in order."""
    outage = threading.Event()
    outage.set()
    accepted: list[Request] = []

    def answer(request: Request) -> Reply:
        if outage.is_set():
            return Reply(status=500)
        accepted.append(request)
        return Reply()

    def arrived() -> list[int]:
        return [step.step for report in delivered(accepted) for step in report.steps]

    with ToldBalancer(answer) as balancer, reporting(balancer.url) as reporter:
        for step in range(100):
            reporter.push(totals(step))
        assert eventually(lambda: len(balancer.requests) >= 2)
        outage.clear()
        assert eventually(lambda: len(arrived()) >= 100)

    assert arrived() == list(range(100))


@pytest.mark.fault
def test_a_full_ring_drops_the_oldest_and_counts_them() -> None:
    """A long outage keeps the newest steps, and the next report says how many are gone."""
    url = "http://127.0.0.1:9"
    own = settings(url, ring_steps=8)
    reporter = Reporter(own, StepMeter(), Direct(own, Channel(own)))
    for step in range(20):
        reporter.push(totals(step))

    assert reporter.dropped == 12
    assert reporter.unsent_steps == 8

    with (
        ToldBalancer(lambda _: Reply()) as balancer,
        reporting(balancer.url, pushed=20, ring_steps=8) as late,
    ):
        assert eventually(lambda: late.sent >= 1)

    assert steps(balancer) == list(range(12, 20))
    assert reports(balancer)[-1].dropped == late.dropped == 12


@pytest.mark.fault
def test_a_refused_report_is_dropped_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A report that can never be accepted does not block those after it."""
    refusal = Reply(status=422, body=b'{"field": "$.steps"}')
    with (
        ToldBalancer(Failing(refusal, times=2)) as balancer,
        reporting(balancer.url) as reporter,
    ):
        for step in range(3):
            reporter.push(totals(step))
            assert eventually(functools.partial(came, balancer, step))

    assert [report.sequence for report in reports(balancer)[:3]] == [1, 2, 3]
    assert reporter.refused == 2
    assert reporter.dropped == sum(len(report.steps) for report in reports(balancer)[:2])
    assert caplog.text.count("refused report") == 1
    assert '{"field": "$.steps"}' in caplog.text


@pytest.mark.fault
def test_retry_after_is_heeded_within_bounds() -> None:
    """A balancer that asks for an hour is asked again after ``max_retry_s``."""
    busy = Reply(status=429, headers={"Retry-After": "3600"})
    with (
        ToldBalancer(Failing(busy, times=1)) as balancer,
        reporting(balancer.url, max_retry_s=0.3, first_retry_s=0.01) as reporter,
    ):
        reporter.push(totals(1))
        assert eventually(lambda: reporter.sent >= 1)


@pytest.mark.fault
@pytest.mark.parametrize("reply", [Reply(hang=True), TRICKLE], ids=["hung", "trickle"])
def test_the_deadline_covers_the_whole_exchange(reply: Reply) -> None:
    """A balancer that is silent, or trickles byte by byte, is left at the deadline."""
    with (
        ToldBalancer(Failing(reply, times=1)) as balancer,
        reporting(balancer.url, timeout_s=2.0) as reporter,
    ):
        reporter.push(totals(1))
        assert eventually(lambda: reporter.sent >= 1)
        assert len(balancer.requests) >= 2


@pytest.mark.fault
def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer that never stops talking costs a bounded amount of memory; it is asked again."""
    monkeypatch.setattr("libra.agent.reporter.HEARTBEAT_S", 3600.0)
    flood = Reply(body=ACCEPTED + b" " * (2 * MAX_ANSWER_BYTES))
    with ToldBalancer(Failing(flood, times=1)) as balancer, reporting(balancer.url) as reporter:
        assert eventually(lambda: reporter.sent >= 1)
        assert len(balancer.requests) >= 2


def test_reports_stay_out_of_the_jobs_log_and_proxies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that logs at INFO gets no line per request, and its proxy is not asked."""
    caplog.set_level("INFO")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ToldBalancer(lambda _: Reply()) as balancer, reporting(balancer.url) as reporter:
        assert eventually(lambda: reporter.sent >= 1)

    assert caplog.text == ""


def test_closing_sends_what_is_left() -> None:
    """Steps that were pushed just before the end are in the last reports, however many."""
    with (
        ToldBalancer(lambda _: Reply()) as balancer,
        reporting(balancer.url, interval_s=3600.0) as reporter,
    ):
        for step in range(2 * MAX_REPORT_STEPS + 5):
            reporter.push(totals(step))

    assert steps(balancer) == list(range(2 * MAX_REPORT_STEPS + 5))
    assert max(len(report.steps) for report in reports(balancer)) == MAX_REPORT_STEPS


@pytest.mark.fault
def test_closing_in_the_middle_of_a_report_loses_nothing() -> None:
    """A report that gets no answer before the end is sent again, and then what came since."""
    hung = Failing(Reply(hang=True), times=1)
    with ToldBalancer(hung) as balancer, reporting(balancer.url, timeout_s=600.0) as reporter:
        reporter.push(totals(1))
        assert eventually(lambda: len(balancer.requests) >= 1)
        reporter.push(totals(2))

    assert len(balancer.requests) == 3
    assert steps(balancer) == [1, 2]


def test_a_rank_that_has_not_begun_says_nothing() -> None:
    """Of several ranks one that is not attached yet may not know which launch it is of."""
    with (
        ToldBalancer(lambda _: Reply()) as balancer,
        reporting(balancer.url, attached=False) as reporter,
    ):
        assert not eventually(lambda: bool(balancer.requests), timeout_s=0.2)
        reporter.push(totals(0))
        assert eventually(lambda: reporter.sent >= 1)
        assert reporter.attached

    assert steps(balancer) == [0]


def test_a_quiet_rank_says_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without news the balancer hears of a rank now and then, not at every interval."""
    monkeypatch.setattr("libra.agent.reporter.HEARTBEAT_S", 3600.0)
    with (
        ToldBalancer(lambda _: Reply()) as balancer,
        reporting(balancer.url, interval_s=0.01) as reporter,
    ):
        assert eventually(lambda: reporter.sent >= 1)
        assert not eventually(lambda: len(balancer.requests) > 1, timeout_s=0.3)
