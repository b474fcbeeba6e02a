"""Thousands who wait are all woken, a few in each round of the event loop."""

import asyncio

from libra.balancer.waiters import Waiters, Waker


async def waiting(
    waiters: Waiters, number: int, timeout_s: float = 60.0
) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(waiters.wait(timeout_s)) for _ in range(number)]
    await asyncio.sleep(0)
    assert len(waiters) == number
    return tasks


def test_all_are_woken_with_turns_for_others_in_between() -> None:
    """Ten thousand waiters never run in one round: whatever else is ready has its turn."""

    async def go() -> tuple[int, int]:
        waiters = Waiters(Waker())
        tasks = await waiting(waiters, 10_000)
        waiters.wake()
        most, before, rounds = 0, 0, 0
        while before < len(tasks):
            await asyncio.sleep(0)
            done = sum(task.done() for task in tasks)
            most, before, rounds = max(most, done - before), done, rounds + 1
            assert rounds < 10_000
        assert all(task.result() for task in tasks)
        return most, len(waiters)

    most, left = asyncio.run(go())
    assert most <= 64
    assert left == 0


def test_those_who_may_wait_leave_most_of_the_loop() -> None:
    """Slices a pause apart: between two of them the event loop has any number of rounds."""

    async def go(pause_s: float) -> list[asyncio.Task[bool]]:
        waiters = Waiters(Waker(pause_s=pause_s))
        tasks = await waiting(waiters, 100)
        waiters.wake()
        for _ in range(1000):
            await asyncio.sleep(0)
        return tasks

    async def few() -> int:
        tasks = await go(3600.0)
        woken = sum(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        return woken

    async def all_in_the_end() -> bool:
        return all(await asyncio.gather(*await go(0.001)))

    assert asyncio.run(few()) == 8
    assert asyncio.run(all_in_the_end())


def test_two_crowds_share_one_waker() -> None:
    """Many jobs that wake theirs at once do not add up."""

    async def go() -> int:
        waker = Waker()
        crowds = [Waiters(waker) for _ in range(20)]
        tasks = [task for crowd in crowds for task in await waiting(crowd, 100)]
        for crowd in crowds:
            crowd.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        few = sum(task.done() for task in tasks)
        assert all(await asyncio.gather(*tasks))
        return few

    assert 0 < asyncio.run(go()) <= 128


def test_who_comes_later_waits_for_the_next_news() -> None:
    """A wake is for those who wait; one that begins during it is not woken by it."""

    async def go() -> list[bool]:
        waiters = Waiters(Waker())
        (first,) = await waiting(waiters, 1)
        waiters.wake()
        second = asyncio.create_task(waiters.wait(0.01))
        return [await first, await second]

    assert asyncio.run(go()) == [True, False]


def test_who_gives_up_is_forgotten() -> None:
    """A cancelled wait leaves nothing behind, and others are woken still."""

    async def go() -> bool:
        waiters = Waiters(Waker())
        gone, stays = await waiting(waiters, 2)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert len(waiters) == 1
        waiters.wake()
        return await stays

    assert asyncio.run(go())
