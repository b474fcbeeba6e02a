"""The newest valid policy is at hand, and nothing else ever is."""

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from libra.agent.background import Background
from libra.agent.channel import Channel
from libra.agent.follower import Follower
from libra.balancer.policy import HOME_POLICY, Policy, checksum_of, encode_policy
from tests.balancers import NO_JOB, TRICKLE, Reply, Request, ToldBalancer, eventually
from tests.test_reporter import settings


@contextlib.contextmanager
def following(url: str, **changes: Any) -> Iterator[Follower]:
    """Run a follower on a thread of its own."""
    own = settings(url, **changes)
    channel = Channel(own)
    follower = Follower(own, channel)
    background = Background(follower.run, last=channel.close, last_timeout_s=60.0)
    background.start()
    try:
        yield follower
    finally:
        assert background.stop(90.0)


def offer(policy: Policy) -> Reply:
    return Reply(status=200, headers={"ETag": f'"{policy.checksum}"'}, body=encode_policy(policy))


def policy(version: int) -> Policy:
    return Policy(version=version, pooling=True, reason=f"version {version}")


def asked_with(server: ToldBalancer, policy: Policy) -> bool:
    """Tell whether the last poll says that this policy was seen."""
    return server.requests[-1].headers["if-none-match"] == f'"{policy.checksum}"'


class LongPoll:
    """Answer as a balancer does: at once where the ETag differs, else when ``policy`` changes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.changed = threading.Event()

    def __call__(self, request: Request) -> Reply:
        if request.headers["if-none-match"] == f'"{self.policy.checksum}"':
            self.changed.wait(0.2)
        if request.headers["if-none-match"] == f'"{self.policy.checksum}"':
            return Reply(status=304, body=b"")
        return offer(self.policy)

    def publish(self, policy: Policy) -> None:
        self.policy = policy
        self.changed.set()


def test_a_published_policy_is_at_hand() -> None:
    """Home until a policy came, then each newer version as it is published."""
    balancer = LongPoll(HOME_POLICY)
    with ToldBalancer(balancer) as server, following(server.url) as follower:
        assert eventually(lambda: len(server.requests) >= 2)
        assert follower.policy == HOME_POLICY

        for version in (1, 2):
            balancer.publish(policy(version))
            assert eventually(lambda: follower.policy == balancer.policy)
    assert server.requests[0].path == "/api/v1/jobs/job/policy?wait=25"


def test_a_policy_can_come_after_the_job() -> None:
    """A balancer that does not know the job yet is asked again, without alarm."""
    known = threading.Event()
    with (
        ToldBalancer(lambda _: offer(policy(1)) if known.is_set() else NO_JOB) as server,
        following(server.url) as follower,
    ):
        assert eventually(lambda: len(server.requests) >= 8)
        known.set()

        assert eventually(lambda: follower.policy.version == 1)


def test_what_a_newer_balancer_adds_is_no_fault() -> None:
    """A policy with a field that is not known here is taken, and asked about as it came."""
    body = encode_policy(policy(3))[:-1] + b',"of_a_later_version":7}'
    etag = f'"{checksum_of(body)}"'
    newer = Reply(status=200, headers={"ETag": etag}, body=body)
    with ToldBalancer(lambda _: newer) as server, following(server.url) as follower:
        assert eventually(lambda: follower.policy == policy(3))
        assert eventually(lambda: server.requests[-1].headers["if-none-match"] == etag)


@pytest.mark.fault
def test_a_version_never_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    """A balancer that lost its memory changes nothing, is told of once, and is not hammered."""
    balancer = LongPoll(policy(5))
    with ToldBalancer(balancer) as server, following(server.url) as follower:
        assert eventually(lambda: follower.policy.version == 5)
        for older in (policy(4), Policy(version=5, pooling=False, reason="another fifth")):
            balancer.publish(older)
            assert eventually(functools.partial(asked_with, server, older))

            assert follower.policy == policy(5)
        balancer.publish(policy(6))
        assert eventually(lambda: follower.policy.version == 6)
    assert caplog.text.count("already follows version") == 1


@pytest.mark.fault
@pytest.mark.parametrize(
    "lie",
    [
        Reply(status=200, headers={"ETag": '"0123456789abcdef"'}, body=encode_policy(policy(9))),
        Reply(status=200, body=encode_policy(policy(9))),
        Reply(status=200, headers={"ETag": f'"{policy(9).checksum}"'}, body=b"{"),
        offer(Policy(version=9, pooling=True, cost=(1 << 50, 0, 0, 1, 0, 0))),
        offer(Policy(version=9, pooling=True, cost=(0, 0, 0, 1 << 30, 0, 0))),
        offer(Policy(version=9, pooling=True, cost=(0, 0, 0, 0, 0, 0))),
        offer(Policy(version=-9, pooling=True)),
        Reply(status=200, body=b"<html>hello</html>"),
        Reply(status=500),
        Reply(raw=b"garbage\r\n\r\n"),
        Reply(raw=b""),
        Reply(hang=True),
        TRICKLE,
    ],
    ids=[
        *("checksum", "no-etag", "cut", "huge-tiles", "huge-pairs", "zero", "negative", "html"),
        *("500", "garbage", "closed", "hung", "trickle"),
    ],
)
def test_nothing_but_a_whole_valid_policy_is_taken(lie: Reply) -> None:
    """Lies and failures leave the policy as it was, and the truth is taken when it comes."""
    honest = threading.Event()
    endless = lie.hang or lie.gap_s > 0
    deadlines = {"poll_wait_s": 0.5, "timeout_s": 1.5} if endless else {}
    with (
        ToldBalancer(lambda _: offer(policy(1)) if honest.is_set() else lie) as server,
        following(server.url, **deadlines) as follower,
    ):
        assert eventually(lambda: len(server.requests) >= (2 if endless else 3))
        assert follower.policy is HOME_POLICY
        honest.set()

        assert eventually(lambda: follower.policy == policy(1))


@pytest.mark.fault
def test_quick_answers_are_not_hammered() -> None:
    """A balancer that answers every poll at once is asked once in an interval."""
    with ToldBalancer(lambda _: Reply(status=304, body=b"")) as server:
        began_s = time.monotonic()
        with following(server.url, interval_s=0.2):
            assert eventually(lambda: len(server.requests) >= 4)
            # In this order: what comes between the two only makes the bound looser.
            asked = len(server.requests)
            elapsed_s = time.monotonic() - began_s

    assert asked <= 1 + elapsed_s / 0.19
