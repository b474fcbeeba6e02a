"""The agent's thread: its jobs end when told, fail alone, and borrow no thread of Python's."""

import asyncio
import concurrent.futures.thread as pools
import threading

import pytest

from libra.agent.background import Background
from libra.agent.channel import Channel
from libra.agent.settings import AgentSettings
from tests.balancers import Reply, ToldBalancer, eventually, no_thread_left


async def _nothing() -> None:
    """End at once."""


def test_stopping_cancels_the_jobs_then_runs_the_last() -> None:
    """A job that would run for ever is cancelled before the last coroutine starts."""
    events: list[str] = []

    async def endless() -> None:
        events.append("started")
        try:
            await asyncio.sleep(3600)
        finally:
            events.append("cancelled")

    async def last() -> None:
        events.append("last")

    with no_thread_left():
        background = Background(endless, last=last)
        background.start()
        assert eventually(lambda: events == ["started"])
        assert background.stop(60.0)
        assert background.stop(60.0)

    assert events == ["started", "cancelled", "last"]


def test_the_last_has_a_deadline() -> None:
    """What cannot be sent in time is left."""
    with no_thread_left():
        background = Background(last=lambda: asyncio.sleep(3600), last_timeout_s=0.05)
        background.start()

        assert background.stop(60.0)


def test_a_job_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in one part is logged with its traceback and leaves the other part running."""
    alive = threading.Event()

    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    async def sound() -> None:
        while "a bug" not in caplog.text:  # the other part has failed, and it is told
            await asyncio.sleep(0.01)
        alive.set()

    background = Background(broken, sound, last=_nothing)
    background.start()

    assert alive.wait(60.0)
    assert background.stop(60.0)
    assert "ZeroDivisionError: a bug" in caplog.text


def test_names_are_looked_up_on_its_own_thread() -> None:
    """No pool thread is made, which Python would join at exit however long a resolver hangs."""
    before = set(pools._threads_queues)
    statuses: list[int] = []

    with ToldBalancer(lambda _: Reply()) as balancer:
        url = balancer.url.replace("127.0.0.1", "localhost")
        channel = Channel(AgentSettings(balancer=url, job="job", connect_timeout_s=60.0))

        async def ask() -> None:
            answer = await channel.ask("GET", "/", headers={}, timeout_s=60.0)
            statuses.append(answer.status)

        background = Background(ask, last=channel.close, last_timeout_s=60.0)
        background.start()
        assert eventually(lambda: statuses == [202])
        assert not set(pools._threads_queues) - before
        assert background.stop(90.0)
