"""Ways out for a report: one that failed is left alone for a while, what is urgent goes at once."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from libra.agent.channel import Channel, NoAnswerError
from libra.agent.connection import Answer
from libra.agent.direct import TAKEN, Direct, Verdict
from libra.agent.follower import Follower
from libra.agent.relay import Relay
from libra.agent.relay_client import RelayClient
from libra.balancer.policy import HOME_POLICY
from libra.balancer.wire import Report
from tests.nodes import settings
from tests.running import make_report

T = TypeVar("T")
FOLLOWER = cast(Follower, SimpleNamespace(policy=HOME_POLICY))
OWN = settings("http://127.0.0.1:1", 0, interval_s=600.0, first_retry_s=300.0, max_retry_s=900.0)


class Way:
    """Stands for the direct way to the balancer, which is there or not."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.asked: list[list[int]] = []

    async def send(self, report: Report, *, urgent: bool = False) -> Verdict:
        return (await self.send_all([report]))[0]

    async def send_all(self, reports: Sequence[Report]) -> list[Verdict]:
        self.asked.append([report.rank for report in reports])
        if self.away:
            raise NoAnswerError("away")
        return [TAKEN] * len(reports)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def report(rank: int) -> Report:
    return make_report("job", rank=rank, world_size=4)


async def relayed(way: Way, folder: Path, work: Any) -> None:
    relay = Relay(OWN, folder / "relay", cast(Direct, way), FOLLOWER)
    running = asyncio.create_task(relay.run())
    try:
        await work(relay)
    finally:
        running.cancel()
        await relay.close()


def test_a_relay_whose_balancer_is_away_does_not_ask_for_every_rank(tmp_path: Path) -> None:
    """Until its retry is due, ranks are told so without another request."""

    async def work(relay: Relay) -> None:
        for _ in range(3):
            with pytest.raises(NoAnswerError) as failure:
                await relay.send(report(1))
            assert failure.value.retry_after_s > 100.0

    way = Way(away=True)
    run(relayed(way, tmp_path, work))
    assert way.asked == [[1]]


def test_an_urgent_report_takes_those_that_wait_along(tmp_path: Path) -> None:
    """A batch is not due for minutes; a rank that ends does not wait for it."""

    async def work(relay: Relay) -> None:
        await relay.send(report(0))
        waiting = asyncio.create_task(relay.send(report(1)))
        await asyncio.sleep(0)
        assert await relay.send(report(2), urgent=True) == TAKEN
        assert await waiting == TAKEN

    way = Way()
    run(relayed(way, tmp_path, work))
    assert way.asked == [[0], [1, 2]]


def test_a_rank_does_not_try_a_relay_that_failed_with_every_report(tmp_path: Path) -> None:
    """It reports directly, and looks for the relay again only after a pause that grows."""
    way, tried = Way(), []

    async def work() -> None:
        client = RelayClient(OWN, tmp_path / "nobody", cast(Direct, way), FOLLOWER)
        connect = client._connect

        async def counted() -> Any:
            tried.append(client.failures)
            return await connect()

        client._connect = counted  # type: ignore[method-assign]
        for _ in range(5):
            assert await client.send(report(3)) == TAKEN
        client._retry_at_s = 0.0
        assert await client.send(report(3)) == TAKEN
        assert client.failures == 2

    run(work())
    assert tried == [0, 1]
    assert way.asked == [[3]] * 6


def test_one_report_is_no_batch() -> None:
    """A balancer that knows no batches is asked for none where there is but one report."""
    paths: list[str] = []

    async def ask(method: str, path: str, **_: object) -> Answer:
        paths.append(path)
        return Answer(status=202, headers={}, body=b'{"accepted": true}')

    direct = Direct(OWN, cast(Channel, SimpleNamespace(ask=ask)))
    assert run(direct.send_all([report(0)])) == [TAKEN]
    assert paths == ["/api/v1/jobs/job/reports"]
