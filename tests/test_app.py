"""The HTTP interface: what it takes, refuses with a reason, shows, and keeps open."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from libra.balancer.app import create_app
from libra.balancer.policy import HOME_POLICY, Policy, decode_policy
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings
from libra.balancer.store import Store
from libra.balancer.wire import encode_report
from tests.running import MSGPACK, RunningBalancer, make_report

VIEWS = ("", "/skew", "/ranks", "/model", "/exchange", "/policies", "/policy", "/events")
POLICY = Policy(version=1, pooling=True, reason="by hand")


@asynccontextmanager
async def open_service(path: Path) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A service in this process, and a client that calls its application directly."""
    service = Service(Store(path, commit_interval_s=0), ServiceSettings(store=path))
    service.restore()
    transport = httpx.ASGITransport(app=create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://libra") as client:
        yield service, client
    service.store.close()


async def send(client: httpx.AsyncClient, sequence: int = 0) -> httpx.Response:
    body = encode_report(make_report("j", sequence=sequence))
    return await client.post("/api/v1/jobs/j/reports", content=body, headers=MSGPACK)


def fields(job: str, **changes: Any) -> dict[str, Any]:
    """Return a report as plain fields, so that it can be spoilt."""
    report: dict[str, Any] = json.loads(msgspec.json.encode(make_report(job)))
    return report | changes


def encoded(report: dict[str, Any], kind: str) -> bytes:
    return msgspec.msgpack.encode(report) if "msgpack" in kind else json.dumps(report).encode()


def post(balancer: RunningBalancer, job: str, body: bytes, kind: str) -> httpx.Response:
    url = f"/api/v1/jobs/{job}/reports"
    return balancer.client.post(url, content=body, headers={"Content-Type": kind})


def assert_problem(response: httpx.Response, status: int, field: str | None = None) -> None:
    problem = response.json()

    assert response.headers["content-type"] == "application/problem+json"
    assert set(problem) == {"type", "title", "status", "detail", "field"}
    assert (response.status_code, problem["status"], problem["field"]) == (status, status, field)


@pytest.mark.parametrize("kind", ["application/msgpack", "application/json; charset=utf-8"])
def test_a_first_report_makes_the_job(balancer: RunningBalancer, job: str, kind: str) -> None:
    """Reports come in msgpack or JSON, and the job is listed at once."""
    response = post(balancer, job, encoded(fields(job), kind), kind)

    assert (response.status_code, response.json()) == (202, {"accepted": True, "duplicate": False})
    listed = balancer.client.get("/api/v1/jobs").json()["jobs"]
    assert [summary["reports"] for summary in listed if summary["job"] == job] == [1]


def test_a_duplicate_is_acknowledged_and_not_counted(balancer: RunningBalancer, job: str) -> None:
    """An agent that missed an answer sends again; nothing is folded in twice."""
    balancer.send(make_report(job))
    model = balancer.view(f"{job}/model")
    answers = [balancer.send(make_report(job)).json()["duplicate"] for _ in range(2)]
    summary = balancer.view(job)

    assert answers == [True, True]
    assert (summary["reports"], summary["duplicates"]) == (1, 2)
    assert balancer.view(f"{job}/model") == model


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e9])
@pytest.mark.parametrize("kind", ["application/msgpack", "application/json"])
def test_a_bad_figure_is_named_and_changes_nothing(
    balancer: RunningBalancer, job: str, kind: str, value: float
) -> None:
    """Not finite, negative or absurd: refused, counted, and the job is as before."""
    balancer.send(make_report(job))
    views = [balancer.view(f"{job}{view}") for view in VIEWS[1:-1]]
    report = fields(job, sequence=1)
    report["steps"][0]["seconds"] = value
    response = post(balancer, job, encoded(report, kind), kind)

    assert_problem(response, 422, "$.steps[0].seconds")
    assert [balancer.view(f"{job}{view}") for view in VIEWS[1:-1]] == views
    summary = balancer.view(job)
    assert (summary["reports"], summary["rejected"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("head_dim", 1 << 70), ("head_dim", -5), ("group_heads", 0), ("backend", "x" * 100_000)],
)
def test_a_kernel_that_cannot_be_is_refused(
    balancer: RunningBalancer, job: str, name: str, value: int | str
) -> None:
    """What names a kernel ends up in metrics and store: it stays short and possible."""
    report = fields(job)
    report["steps"][0]["kernels"][0]["kind"][name] = value
    response = post(balancer, job, encoded(report, "application/json"), "application/json")

    assert_problem(response, 422, f"$.steps[0].kernels[0].kind.{name}")


def test_a_report_that_its_job_refuses_is_counted_once(balancer: RunningBalancer, job: str) -> None:
    """What is well formed but cannot be true of this job changes nothing either."""
    balancer.send(make_report(job))
    response = balancer.send(make_report(job, sequence=1, world_size=3))

    assert_problem(response, 422, "$.world_size")
    summary = balancer.view(job)
    assert (summary["reports"], summary["rejected"], summary["world_size"]) == (1, 1, 2)


def test_a_bad_first_report_makes_no_job(balancer: RunningBalancer, job: str) -> None:
    """Rubbish leaves nothing behind."""
    body = encoded(fields(job, rank=9), "json")
    response = post(balancer, job, body, "application/json")

    assert_problem(response, 422, "$.rank")
    assert balancer.client.get(f"/api/v1/jobs/{job}").status_code == 404


@pytest.mark.parametrize(
    ("status", "field", "body", "kind"),
    [
        (400, "$", b"\xc1", "application/msgpack"),
        (400, "$", b"{", "application/json"),
        (400, "$", b"{NaN", "application/json"),
        (400, "$", b"[" * 100_000 + b"NaN", "application/json"),
        (422, "$", b"{}", "application/json"),
        (422, "$", b"[NaN]", "application/json"),
        (413, None, bytes((4 << 20) + 1), "application/msgpack"),
        (415, None, b"{}", "text/plain"),
    ],
)
def test_what_is_no_report_is_refused(
    balancer: RunningBalancer, job: str, status: int, field: str | None, body: bytes, kind: str
) -> None:
    """Each fault has its status, and the connection stays of use."""
    assert_problem(post(balancer, job, body, kind), status, field)


def test_a_body_of_unknown_length_is_limited_too(balancer: RunningBalancer, job: str) -> None:
    """A chunked body is cut off where the limit is."""

    def chunks() -> Iterator[bytes]:
        for _ in range(5):
            yield bytes(1 << 20)

    url = f"/api/v1/jobs/{job}/reports"
    assert_problem(balancer.client.post(url, content=chunks(), headers=MSGPACK), 413)


def test_a_report_of_another_job_is_refused(balancer: RunningBalancer, job: str) -> None:
    """A report counts for the job in its path, or for none."""
    response = post(balancer, job, encode_report(make_report("other")), "application/msgpack")

    assert_problem(response, 409, "$.job")


@pytest.mark.parametrize("view", VIEWS)
def test_an_unknown_job_is_not_found(balancer: RunningBalancer, view: str) -> None:
    """Reading makes no job, and a poll for its policy does not wait."""
    assert_problem(balancer.client.get(f"/api/v1/jobs/nobody{view}?wait=30"), 404, "job")


def test_every_error_is_a_problem(balancer: RunningBalancer, job: str) -> None:
    """Unknown paths, methods and parameters are answered in the same form."""
    balancer.send(make_report(job))

    assert_problem(balancer.client.get("/api/v1/nothing"), 404)
    assert_problem(balancer.client.delete("/api/v1/jobs"), 405)
    assert_problem(balancer.client.get(f"/api/v1/jobs/{job}/skew?last=0"), 422, "query.last")


def test_the_mode_is_set(balancer: RunningBalancer, job: str) -> None:
    """A job watches only, until it is told otherwise by a mode that exists."""
    balancer.send(make_report(job))
    path = f"/api/v1/jobs/{job}/mode"

    assert balancer.view(job)["mode"] == "observe"
    assert balancer.client.put(path, json={"mode": "adapt"}).json() == {"mode": "adapt"}
    assert balancer.view(job)["mode"] == "adapt"
    assert_problem(balancer.client.put(path, json={"mode": "reckless"}), 422, "$.mode")
    assert_problem(balancer.client.put(path, content=b'{"mode": "frozen"}'), 415)
    assert balancer.view(job)["mode"] == "adapt"


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
            async with asyncio.timeout(10):
                while not service.jobs["j"].polls:
                    await asyncio.sleep(0.01)
            await service.publish(service.jobs["j"], POLICY)
            polled = await asyncio.wait_for(poll, 10)
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            return polled, await client.get(path)

    polled, restarted = asyncio.run(go())
    assert decode_policy(polled.content).reason == POLICY.reason
    assert restarted.content == polled.content


@pytest.mark.fault
def test_a_policy_is_shown_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fsync no agent and no page hears of a policy that a crash would take back."""
    disk = threading.Event()
    transact = Store._transact

    def slow(store: Store, writes: Any) -> Any:
        disk.wait(20)
        return transact(store, writes)

    async def go() -> tuple[int, int]:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            live = service.jobs["j"]
            monkeypatch.setattr(Store, "_transact", slow)
            publishing = asyncio.create_task(service.publish(live, POLICY))
            await asyncio.sleep(0.2)
            early = decode_policy((await client.get("/api/v1/jobs/j/policy")).content).version
            disk.set()
            await publishing
            return early, decode_policy((await client.get("/api/v1/jobs/j/policy")).content).version

    assert asyncio.run(go()) == (0, 1)


@pytest.mark.fault
def test_a_full_queue_asks_for_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 with Retry-After, not ready, and the refused report has left no trace."""

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            with monkeypatch.context() as patch:
                patch.setattr(Store, "full", True)
                refused = await send(client, 1)
                ready = await client.get("/readyz")
            again = await send(client, 1)
            summary = service.jobs["j"].job.summary(service.now_s())

            assert_problem(refused, 429)
            assert int(refused.headers["retry-after"]) >= 1
            assert_problem(ready, 503)
            assert again.json() == {"accepted": True, "duplicate": False}
            assert summary["reports"] == 2
            assert service.results == {"accepted": 2, "queue_full": 1}

    asyncio.run(go())


@pytest.mark.fault
def test_a_report_that_the_disk_lost_is_not_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """503 while the disk is full; the agent's next try is kept, together with what it missed."""

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            database = service.store._connection
            pages = database.execute("PRAGMA page_count").fetchone()[0]
            database.execute(f"PRAGMA max_page_count = {pages}").fetchone()
            report = make_report("j", sequence=1)
            report.moments[0].points = [(1.0, 1.0, 1.0, 1.0, 1.0)] * 256
            url, body = "/api/v1/jobs/j/reports", encode_report(report)
            refused = await client.post(url, content=body, headers=MSGPACK)
            ready = await client.get("/readyz")
            database.execute("PRAGMA max_page_count = 100000").fetchone()
            taken = await client.post(url, content=body, headers=MSGPACK)

            assert (refused.status_code, ready.status_code, taken.status_code) == (503, 503, 202)
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            assert service.jobs["j"].job.summary(service.now_s())["reports"] == 2

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


def test_browsers_are_told_to_be_strict(balancer: RunningBalancer, job: str) -> None:
    """No foreign script, no framing, no guessed types, nothing stale, on pages and data alike."""
    for path in ("/", "/docs", "/static/docs.js", "/api/v1/jobs", "/metrics", "/nothing"):
        headers = balancer.client.get(path).headers
        policy = headers["content-security-policy"]

        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-cache" or path == "/api/v1/jobs"


def test_the_docs_page_is_self_contained(balancer: RunningBalancer) -> None:
    """It obeys the strict content policy, works under a sub-path, and FastAPI's own is off."""
    page = balancer.client.get("/docs").text
    links = re.findall(r'(?:src|href)="([^"]+)"', page)

    assert "docs.js" in page
    assert all(not link.startswith(("http", "/")) for link in links)
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page) is None
    assert all(balancer.client.get(f"/{link}").status_code == 200 for link in links if link != "./")
    assert balancer.client.get("/redoc").status_code == 404


def test_the_schema_knows_reports(balancer: RunningBalancer) -> None:
    """Every reference in openapi.json leads somewhere, and a report's fields are there."""
    text = balancer.client.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]

    assert {"job", "attempt", "moments", "steps"} <= set(schemas["Report"]["properties"])
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) == {
        *("Report", "KernelMoments", "KernelTotals", "KernelKind", "StepTotals", "Coordinates"),
        *("Accepted", "ModeChange", "Problem"),
    }
    assert "HTTPValidationError" not in schemas
