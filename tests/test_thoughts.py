"""Reports are answered first and thought about after; nothing that follows from them is lost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from libra.balancer.batch import Batch, BatchOutcome, batch_of
from libra.balancer.ingest import IngestQueue
from libra.balancer.job import Job
from libra.balancer.job_thoughts import _MAX_WHOLE
from tests.running import make_report
from tests.simulated_job import SimulatedJob
from tests.test_merging import NOW_S, assert_alike, node_batches
from tests.test_service import opened


def kinds(job: Job) -> list[str]:
    return [event.kind for event in job.think(NOW_S)]


def test_a_step_that_waits_comes_to_the_same() -> None:
    """Thought about at once or after the answer: the same steps, fits and speeds."""
    waiting, at_once = Job("job"), Job("job")
    for batches in node_batches(range(12)):
        told = waiting.take_all(batches, NOW_S, later=True)
        assert [one.events for one in told if isinstance(one, BatchOutcome)] == [[]] * len(batches)
        assert waiting.has_whole_steps
        assert kinds(waiting)[:2] == ["step", "model"]
        assert not waiting.has_whole_steps
        at_once.take_all(batches, NOW_S)
    assert waiting.summary(NOW_S)["step"] == 11
    assert_alike(waiting, at_once)


def test_few_steps_wait() -> None:
    """When reports come faster than thoughts, what they bring is thought about with them."""
    job = Job("job")
    for step, batches in enumerate(node_batches(range(_MAX_WHOLE + 1))):
        events = [e for o in job.take_all(batches, NOW_S, later=True) for e in o.events]  # type: ignore[union-attr]
        steps = [event.data["step"] for event in events if event.kind == "step"]
        assert steps == ([] if step < _MAX_WHOLE else list(range(_MAX_WHOLE + 1)))


def test_a_new_launch_waits_for_the_old_ones_steps() -> None:
    """What is whole when a launch begins anew is counted before it is forgotten."""
    job = Job("job")
    (batches,) = node_batches(range(1))
    job.take_all(batches, NOW_S, later=True)
    again = batches[0].reports()
    for report in again:
        report.attempt += 1
    events = job.take(batch_of(again), NOW_S, later=True).events
    assert [event.data["step"] for event in events if event.kind == "step"] == [0]
    assert job.attempt == 1


def test_a_whole_step_survives_the_balancer() -> None:
    """What was acknowledged and not thought about is in the state, and is thought about later."""
    job = Job("job")
    (batches,) = node_batches(range(1))
    job.take_all(batches, NOW_S, later=True)
    again = Job.load(job.core())
    assert again.has_whole_steps
    assert "step" in kinds(again)
    assert again.skew()["steps"] == [0]


class Slow:
    """Folds that take all, and so many thoughts that follow from them."""

    def __init__(self, thoughts: int) -> None:
        self.left = thoughts
        self.log: list[str] = []
        self.waited: list[int] = []
        self.queue = IngestQueue(self.fold, self.conclude, capacity=100, max_bytes=10**6)
        self.senders: list[asyncio.Task[None]] = []

    def fold(self, batches: Sequence[Batch]) -> list[BatchOutcome]:
        return [BatchOutcome() for _ in batches]

    def conclude(self) -> bool:
        if self.left:
            self.left -= 1
            self.log.append("thought")
            self.waited.append(len(self.queue))
            self.senders.append(asyncio.create_task(self.send(f"report {self.left}")))
        return self.left > 0

    async def send(self, name: str) -> None:
        await self.queue.put(batch_of([make_report("job")]), 1)
        self.log.append(name)

    async def send_for_ever(self) -> None:
        while True:
            await self.send("report")


def test_answers_come_before_thoughts_and_reports_between_them() -> None:
    """Who reports while thoughts wait is behind one of them, not behind all."""

    async def go() -> Slow:
        slow = Slow(thoughts=2)
        await slow.send("first")
        await slow.queue.drain()
        return slow

    slow = asyncio.run(asyncio.wait_for(go(), 60))
    assert slow.log == ["first", "thought", "report 1", "thought", "report 0"]


def test_reports_without_end_do_not_keep_thoughts_waiting() -> None:
    """A queue that never runs empty lets a thought in all the same."""

    async def go() -> Slow:
        slow = Slow(thoughts=1)
        senders = [asyncio.create_task(slow.send_for_ever()) for _ in range(50)]
        while slow.left:
            await asyncio.sleep(0)
        for task in senders:
            task.cancel()
        return slow

    slow = asyncio.run(asyncio.wait_for(go(), 60))
    assert slow.waited[0] > 0


def test_who_looks_at_a_job_sees_what_it_was_told(tmp_path: Path) -> None:
    """A step whose last report was answered is there for the next request."""

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            for step in range(3):
                for report in SimulatedJob().reports(range(step, step + 1)):
                    await service.report(report)
                live = await service.find("job")
                assert live is not None
                assert live.job.skew()["steps"][-1] == step

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_job_that_cannot_think_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged; its reports are taken all the same, and so are all others'."""

    def think(job: Job, now_s: float) -> list[object]:
        if job.name == "bad" and job.has_whole_steps:
            job._whole.clear()
            raise ArithmeticError("planted")
        return thinks(job, now_s)  # type: ignore[return-value]

    thinks = Job.think
    monkeypatch.setattr(Job, "think", think)

    async def go() -> None:
        async with opened(tmp_path / "s.sqlite") as service:
            for name in ("bad", "good"):
                reports = [make_report(name, rank=rank, world_size=2) for rank in range(2)]
                told = [await service.report(report) for report in reports]
                assert [one.accepted for one in told] == [1, 1]
            await service.queue.drain()
            assert service.jobs["good"].job.skew()["steps"]

    asyncio.run(asyncio.wait_for(go(), 60))
    assert "Job bad cannot make sense of its newest steps." in caplog.text
    assert "planted" in caplog.text
