"""Every client of a job's events reads the same bytes, in order, or is told to resync."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libra.balancer import broadcast
from libra.balancer.broadcast import EventStream

FIRST = 100


def events(body: bytes) -> list[tuple[int, str]]:
    """Return (id, kind) of each event in an encoded body."""
    frames = [frame for frame in body.split(b"\n\n") if frame.startswith(b"id: ")]
    heads = [frame.decode().split("\n")[:2] for frame in frames]
    return [(int(number[4:]), kind[7:]) for number, kind in heads]


async def read(client: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(client), 5)


async def opened(stream: EventStream, last_id: int | None) -> Any:
    client = stream.follow(last_id)
    assert (await read(client)).startswith(b"retry:")
    return client


def filled(number: int, **settings: Any) -> EventStream:
    stream = EventStream(first_id=FIRST, **settings)
    for step in range(number):
        stream.publish("step", {"step": step})
    return stream


def test_who_comes_back_gets_exactly_what_was_missed() -> None:
    """Events after Last-Event-ID are replayed in order, then live ones follow."""

    async def go() -> list[tuple[int, str]]:
        stream = filled(5)
        client = await opened(stream, FIRST + 2)
        body = await read(client)
        stream.publish("mode", {"mode": "adapt"})
        return events(body + await read(client))

    assert asyncio.run(go()) == [(FIRST + 3, "step"), (FIRST + 4, "step"), (FIRST + 5, "mode")]


def test_the_ring_holds_a_thousand_events() -> None:
    """A client a thousand events behind misses none; one event more and it must resync."""

    async def go(last_id: int) -> list[tuple[int, str]]:
        stream = filled(1001)
        client = await opened(stream, last_id)
        got = events(await read(client))
        while got[-1][0] < FIRST + 1000:
            got += events(await read(client))
        return got

    assert [number for number, _ in asyncio.run(go(FIRST))] == list(range(FIRST + 1, FIRST + 1001))
    assert asyncio.run(go(FIRST - 1)) == [(FIRST + 1000, "resync")]


def test_numbers_from_another_run_resync() -> None:
    """A place before this run, or one that it has not reached, is outside the ring."""

    async def go(last_id: int) -> list[tuple[int, str]]:
        return events(await read(await opened(filled(3), last_id)))

    assert asyncio.run(go(7)) == [(FIRST + 2, "resync")]
    assert asyncio.run(go(FIRST + 50)) == [(FIRST + 2, "resync")]


def test_a_slow_client_resyncs_and_goes_on() -> None:
    """Who reads too slowly holds nobody up, loses the ring's past and gets what follows."""

    async def go() -> tuple[list[tuple[int, str]], int]:
        stream = filled(1, max_events=10)
        client = await opened(stream, None)
        for step in range(50):
            stream.publish("step", {"step": step})
        got = events(await read(client))
        stream.publish("model", {})
        return got + events(await read(client)), stream.resyncs

    assert asyncio.run(go()) == ([(FIRST + 50, "resync"), (FIRST + 51, "model")], 1)


def test_the_ring_is_bounded_in_bytes() -> None:
    """Large events push old ones out before their number does."""

    async def go() -> list[tuple[int, str]]:
        stream = EventStream(first_id=FIRST, max_bytes=10_000)
        for _ in range(20):
            stream.publish("step", {"slowdown": "x" * 1000})
        return events(await read(await opened(stream, FIRST + 1)))

    assert asyncio.run(go()) == [(FIRST + 19, "resync")]


def test_silence_is_broken_by_heartbeats() -> None:
    """A proxy that cuts silent connections sees a comment now and then."""

    async def go() -> bytes:
        return await read(await opened(filled(0, heartbeat_s=0.01), None))

    assert asyncio.run(go()).startswith(b":")


def test_closing_ends_every_client() -> None:
    """No client outlives the stream, and none is counted afterwards."""

    async def go() -> tuple[int, int]:
        stream = filled(0)
        clients = [await opened(stream, None) for _ in range(3)]
        before = stream.clients
        reading = [asyncio.create_task(read(client)) for client in clients]
        await asyncio.sleep(0)
        stream.close()
        done = await asyncio.gather(*reading, return_exceptions=True)
        assert all(isinstance(error, StopAsyncIteration) for error in done)
        return before, stream.clients

    assert asyncio.run(go()) == (3, 0)


def test_a_burst_is_one_write_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of one moment are told together: a thousand pages cost one write each, not several."""
    # However slow this machine is, the three come within one moment.
    monkeypatch.setattr(broadcast, "_GATHER_S", 1.0)

    async def go() -> list[list[tuple[int, str]]]:
        stream = filled(0)
        clients = [await opened(stream, None) for _ in range(3)]
        reading = [asyncio.create_task(read(client)) for client in clients]
        while len(stream._waiters) < len(clients):
            await asyncio.sleep(0)
        for kind in ("step", "model", "effect"):
            stream.publish(kind, {})
            for _ in range(3):
                await asyncio.sleep(0)
        return [events(body) for body in await asyncio.gather(*reading)]

    burst = [(FIRST, "step"), (FIRST + 1, "model"), (FIRST + 2, "effect")]
    assert asyncio.run(go()) == [burst] * 3


def test_clients_at_one_place_share_their_bytes() -> None:
    """What a thousand pages are sent is put together once."""

    async def go() -> set[int]:
        stream = filled(5)
        bodies = [await read(await opened(stream, FIRST)) for _ in range(4)]
        return {id(body) for body in bodies}

    assert len(asyncio.run(go())) == 1


def test_pages_come_back_at_different_times() -> None:
    """Who lost the balancer waits a time of its own, so that it is not run down when it is back."""

    async def go() -> set[bytes]:
        stream = filled(0)
        return {await read(stream.follow(None)) for _ in range(30)}

    waits = {int(line.split()[1]) for line in asyncio.run(go())}
    assert len(waits) > 10
    assert min(waits) >= 1000


def test_who_asks_now_and_then_gets_the_same_events() -> None:
    """Pages of events hold what the stream does, in order, and say where to go on."""
    stream = filled(40)
    kinds, place = [], FIRST - 1
    while (page := json.loads(stream.page(place)))["events"]:
        assert not page["resync"]
        kinds += [(each["id"], each["event"], each["data"]) for each in page["events"]]
        place = page["next"]

    assert kinds == [(FIRST + i, "step", {"step": i}) for i in range(40)]
    assert page["next"] == FIRST + 39


def test_who_asks_from_elsewhere_is_told_to_resync() -> None:
    """A number outside the ring brings the one to go on from, and no events."""
    stream = filled(3)
    for place in (-1, 7, FIRST + 50):
        page = json.loads(stream.page(place))
        assert page == {"events": [], "next": FIRST + 2, "resync": True}
    assert stream.resyncs == 3
