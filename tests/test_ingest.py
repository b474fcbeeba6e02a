"""Reports that wait are bounded, taken in order, together where that is cheap, and job by job."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from libra.balancer.batch import Batch, BatchOutcome, batch_of_one
from libra.balancer.ingest import IngestQueue, QueueFullError
from libra.balancer.wire import ReportError
from tests.running import make_report

Outcomes = Sequence[BatchOutcome | Exception]


def batch(job: str, sequence: int = 0) -> Batch:
    return batch_of_one(make_report(job, sequence=sequence))


class Folds:
    """Folds that only note what they were given."""

    def __init__(self, refuse: str = "") -> None:
        self.groups: list[list[tuple[str, int]]] = []
        self.refuse = refuse

    def __call__(self, batches: Sequence[Batch]) -> Outcomes:
        self.groups.append([(one.job, one.sequences[0]) for one in batches])
        return [
            ReportError("$", "invalid", "refused") if one.job == self.refuse else BatchOutcome()
            for one in batches
        ]


def run(go: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await go()

    asyncio.run(within())


def test_what_waits_of_a_job_is_folded_in_together_and_in_order() -> None:
    """Forty reports at once are two folds, and each is told what became of it."""
    folds = Folds()

    async def go() -> None:
        queue = IngestQueue(folds, capacity=100, max_bytes=10**6)
        await asyncio.gather(*(queue.put(batch("a", i), 10) for i in range(40)))
        assert (len(queue), queue.num_bytes) == (0, 0)

    run(go)
    assert [len(group) for group in folds.groups] == [32, 8]
    assert [number for group in folds.groups for _, number in group] == list(range(40))


def test_a_busy_job_keeps_no_other_waiting() -> None:
    """A report of a quiet job is taken after one turn of the busy one, not after all of it."""
    folds = Folds()

    async def go() -> None:
        queue = IngestQueue(folds, capacity=1000, max_bytes=10**6)
        busy = [queue.put(batch("busy", i), 1) for i in range(300)]
        await asyncio.gather(*busy, queue.put(batch("quiet"), 1))

    run(go)
    assert [group[0][0] for group in folds.groups[:2]] == ["busy", "quiet"]


def test_a_refusal_is_told_to_its_sender_alone() -> None:
    """Others of the same moment are told of theirs."""
    folds = Folds(refuse="bad")

    async def go() -> None:
        queue = IngestQueue(folds, capacity=10, max_bytes=10**6)
        told = await asyncio.gather(
            *(queue.put(batch(job), 1) for job in ("good", "bad")), return_exceptions=True
        )
        assert isinstance(told[0], BatchOutcome)
        assert isinstance(told[1], ReportError)

    run(go)


def test_a_fold_that_fails_is_told_to_all_of_it() -> None:
    """Nobody waits for ever for a fold that raised, and the queue goes on."""

    def fail(batches: Sequence[Batch]) -> Outcomes:
        raise ZeroDivisionError

    async def go() -> None:
        queue = IngestQueue(fail, capacity=10, max_bytes=10**6)
        for _ in range(2):
            told = await asyncio.gather(
                *(queue.put(batch("a", i), 1) for i in range(3)), return_exceptions=True
            )
            assert [type(one) for one in told] == [ZeroDivisionError] * 3

    run(go)


def test_who_has_hung_up_is_not_folded_in() -> None:
    """It will be sent again: taken now, it would be a duplicate that nobody was told of."""
    folds = Folds()

    async def go() -> None:
        queue = IngestQueue(folds, capacity=10, max_bytes=10**6)
        gone = asyncio.ensure_future(queue.put(batch("a", 1), 1))
        await asyncio.sleep(0)
        gone.cancel()
        await queue.put(batch("a", 2), 1)

    run(go)
    assert folds.groups == [[("a", 2)]]


@pytest.mark.parametrize(("capacity", "max_bytes"), [(3, 10**6), (100, 30)])
def test_both_bounds_hold(capacity: int, max_bytes: int) -> None:
    """By number or by bytes: what does not fit is refused at once, and fits again later."""

    async def go() -> None:
        queue = IngestQueue(Folds(), capacity=capacity, max_bytes=max_bytes)
        waiting = [asyncio.ensure_future(queue.put(batch("a", i), 10)) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await queue.put(batch("a", 3), 10)
        assert queue.full_for_s >= 0
        await asyncio.gather(*waiting)
        await queue.put(batch("a", 3), 10)

    run(go)
