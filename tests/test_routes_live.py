"""What stays open: agents get a policy once it is safe, pages each event once and in order."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from libra.balancer.policy import HOME_POLICY, Policy, decode_policy
from libra.balancer.settings import ServeSettings, ServiceSettings
from tests.application import assert_problem, open_service, send
from tests.disk import Disk
from tests.running import RunningBalancer, make_report, wait_for

POLICY = Policy(version=1, pooling=True, reason="by hand")


def test_a_policy_is_sent_once(balancer: RunningBalancer, job: str) -> None:
    """An agent that has the policy gets 304, at once or after the wait that it asked for."""
    balancer.send(make_report(job))
    path = f"/api/v1/jobs/{job}/policy"
    first = balancer.client.get(path)
    known = {"If-None-Match": first.headers["etag"]}

    assert decode_policy(first.content) == HOME_POLICY
    assert first.headers["etag"] == f'"{HOME_POLICY.checksum}"'
    assert balancer.client.get(path, headers=known).status_code == 304
    again = balancer.client.get(f"{path}?wait=0.2", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.elapsed.total_seconds() >= 0.2


def test_a_new_policy_ends_the_wait_and_is_on_disk(tmp_path: Path) -> None:
    """A long poll is answered by the publication, which a restart then still knows."""

    async def go() -> tuple[httpx.Response, httpx.Response]:
        path = "/api/v1/jobs/j/policy"
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            known = {"If-None-Match": f'"{HOME_POLICY.checksum}"'}
            poll = asyncio.create_task(client.get(f"{path}?wait=60", headers=known))
            async with asyncio.timeout(40):
                while not service.jobs["j"].polls:
                    await asyncio.sleep(0.01)
            await service.publish(service.jobs["j"], POLICY)
            # Less than the poll would have waited.
            polled = await asyncio.wait_for(poll, 40)
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            return polled, await client.get(path)

    polled, restarted = asyncio.run(go())
    assert decode_policy(polled.content).reason == POLICY.reason
    assert restarted.content == polled.content


@pytest.mark.fault
def test_a_policy_is_shown_only_once_it_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    """Before the fsync no agent gets, and no event tells of, a policy that a crash may undo."""

    async def version(client: httpx.AsyncClient) -> int:
        return decode_policy((await client.get("/api/v1/jobs/j/policy")).content).version

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            live = service.jobs["j"]
            stream = live.stream.follow(None)
            await anext(stream)
            event = asyncio.ensure_future(anext(stream))
            disk.keep_busy()
            publishing = asyncio.create_task(service.publish(live, POLICY))
            assert await asyncio.to_thread(disk.reached.wait, 60)

            assert (await version(client), event.done()) == (0, False)
            disk.free.set()
            await publishing
            assert await version(client) == 1
            assert b"event: policy" in await asyncio.wait_for(event, 60)

    asyncio.run(go())


def read_events(
    balancer: RunningBalancer, job: str, last_id: int | None, number: int
) -> list[tuple[int, str, Any]]:
    """Return (id, kind, data) of the first events of a stream."""
    headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
    events: list[tuple[int, str, Any]] = []
    event_id, kind = -1, ""
    with balancer.client.stream("GET", f"/api/v1/jobs/{job}/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if name == "retry":
                balancer.client.put(f"/api/v1/jobs/{job}/mode", json={"mode": "frozen"})
            elif name == "id":
                event_id = int(value)
            elif name == "event":
                kind = value
            elif name == "data":
                events.append((event_id, kind, json.loads(value)))
                if len(events) == number:
                    break
    return events


def test_events_are_followed_and_replayed(balancer: RunningBalancer, job: str) -> None:
    """A page hears of a change, and after a break of all that it missed, once each, in order."""
    balancer.send(make_report(job))
    ((first, kind, data),) = read_events(balancer, job, None, 1)
    for mode in ("adapt", "observe"):
        balancer.client.put(f"/api/v1/jobs/{job}/mode", json={"mode": mode})
    replayed = read_events(balancer, job, first, 3)

    assert (kind, data) == ("mode", {"mode": "frozen"})
    assert [number for number, _, _ in replayed] == [first + 1, first + 2, first + 3]
    assert [data["mode"] for _, _, data in replayed] == ["adapt", "observe", "frozen"]


@pytest.mark.parametrize("last_id", [1, 1 << 52, int("9" * 4000)])
def test_a_stranger_to_the_ring_resyncs(balancer: RunningBalancer, job: str, last_id: int) -> None:
    """A page from before a restart fetches everything anew."""
    balancer.send(make_report(job))

    assert read_events(balancer, job, last_id, 1)[0][1:] == ("resync", {})


def test_polls_for_events_see_what_the_stream_tells(balancer: RunningBalancer, job: str) -> None:
    """Behind a proxy that holds streams back, a page asks for events and misses none."""
    balancer.send(make_report(job))
    place = balancer.view(f"{job}/events?after=-1")["next"]
    for mode in ("adapt", "observe"):
        balancer.client.put(f"/api/v1/jobs/{job}/mode", json={"mode": mode})
    page = balancer.view(f"{job}/events?after={place}")

    assert [each["data"] for each in page["events"]] == [{"mode": "adapt"}, {"mode": "observe"}]
    assert [each["id"] for each in page["events"]] == [place + 1, place + 2]
    assert (page["next"], page["resync"]) == (place + 2, False)


def test_one_stream_tells_of_all_jobs(balancer: RunningBalancer, job: str) -> None:
    """A page that lists jobs hears of those that changed, and of no others."""
    balancer.send(make_report(f"{job[-100:]}-quiet"))
    place = balancer.client.get("/api/v1/events?after=-1").json()["next"]
    balancer.send(make_report(job))

    def heard() -> dict[str, Any]:
        page = balancer.client.get(f"/api/v1/events?after={place}").json()
        rows = [row for each in page["events"] for row in each["data"]["jobs"]]
        assert f"{job[-100:]}-quiet" not in {row["job"] for row in rows}
        return {row["job"]: row for row in rows}

    row = wait_for(lambda: heard().get(job))
    assert row["reports"] == 1
    assert row["state"] == "active"


def test_every_policy_of_the_history_has_a_body(balancer: RunningBalancer, job: str) -> None:
    """A version is what agents got under its ETag; one that never was is not found."""
    balancer.send(make_report(job))
    for pooling in (True, False):
        balancer.client.post(f"/api/v1/jobs/{job}/publish", json={"pooling": pooling})
    bodies = [balancer.client.get(f"/api/v1/jobs/{job}/policies/{n}") for n in range(3)]
    newest = balancer.client.get(f"/api/v1/jobs/{job}/policy")

    assert [decode_policy(body.content).pooling for body in bodies] == [False, True, False]
    assert bodies[2].content == newest.content
    assert bodies[2].headers["etag"] == newest.headers["etag"]
    checksum = hashlib.sha256(newest.content).hexdigest()[:16]
    assert newest.headers["etag"] == f'"{checksum}"'
    missing = balancer.client.get(f"/api/v1/jobs/{job}/policies/3")
    assert_problem(missing, 404, "path.version")


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "soon"])
def test_a_wait_that_is_no_time_is_refused(balancer: RunningBalancer, job: str, wait: str) -> None:
    """A poll says for how long, or is told at once that it does not."""
    balancer.send(make_report(job))

    assert_problem(balancer.client.get(f"/api/v1/jobs/{job}/policy?wait={wait}"), 422, "query.wait")


def test_all_who_wait_get_the_policy(tmp_path: Path) -> None:
    """Hundreds of agents get the same policy, with its ETag, and none waits any more."""

    async def go() -> set[tuple[int, bytes, str]]:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            live, known = service.jobs["j"], {"If-None-Match": f'"{HOME_POLICY.checksum}"'}
            path = "/api/v1/jobs/j/policy?wait=60"
            polls = [asyncio.create_task(client.get(path, headers=known)) for _ in range(300)]
            async with asyncio.timeout(60):
                while live.polls < 300:
                    await asyncio.sleep(0.01)
            await service.publish(live, POLICY)
            answers = await asyncio.wait_for(asyncio.gather(*polls), 60)
            assert live.polls == 0
            return {(each.status_code, each.content, each.headers["etag"]) for each in answers}

    ((status, body, etag),) = asyncio.run(go())
    assert (status, decode_policy(body).version) == (200, 1)
    assert etag == f'"{decode_policy(body).checksum}"'


def test_a_policy_says_for_how_long_it_may_be_used(tmp_path: Path) -> None:
    """Where operators set it, agents are told with every answer; otherwise nothing expires."""
    settings = ServeSettings(service=ServiceSettings(policy_expires_s=90.0))

    async def go(settings: ServeSettings) -> list[str | None]:
        async with open_service(tmp_path / "s.sqlite", settings) as (_, client):
            await send(client)
            first = await client.get("/api/v1/jobs/j/policy")
            known = {"If-None-Match": first.headers["etag"]}
            again = await client.get("/api/v1/jobs/j/policy", headers=known)
            return [each.headers.get("libra-policy-expires") for each in (first, again)]

    assert asyncio.run(go(settings)) == ["90", "90"]
    assert asyncio.run(go(ServeSettings())) == [None, None]
