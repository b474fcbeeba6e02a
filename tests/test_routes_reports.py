"""Reports are taken once, kept before they are acknowledged, or refused with a reason."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from libra.balancer.store import Store
from libra.balancer.wire import encode_report
from tests.application import VIEWS, assert_problem, open_service, send
from tests.running import MSGPACK, RunningBalancer, make_report, wait_for


def fields(job: str, **changes: Any) -> dict[str, Any]:
    """Return a report as plain fields, so that it can be spoilt."""
    report: dict[str, Any] = json.loads(msgspec.json.encode(make_report(job)))
    return report | changes


def encoded(report: dict[str, Any], kind: str) -> bytes:
    return msgspec.msgpack.encode(report) if "msgpack" in kind else json.dumps(report).encode()


def connection(response: httpx.Response) -> object:
    """Return what tells the connection of an answer from any other: the client's address."""
    return response.extensions["network_stream"].get_extra_info("client_addr")


def post(balancer: RunningBalancer, job: str, body: bytes, kind: str) -> httpx.Response:
    url = f"/api/v1/jobs/{job}/reports"
    return balancer.client.post(url, content=body, headers={"Content-Type": kind})


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
    views = [balancer.view(f"{job}{view}") for view in VIEWS]
    report = fields(job, sequence=1)
    report["steps"][0]["seconds"] = value
    response = post(balancer, job, encoded(report, kind), kind)

    assert_problem(response, 422, "$.steps[0].seconds")
    assert [balancer.view(f"{job}{view}") for view in VIEWS] == views
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


@pytest.mark.parametrize("kind", ["application/msgpack", "application/json"])
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"waves": [{"transport": "gloo", "sums": [1.0] * 7}]}, "$.waves[0].sums"),
        ({"waves": [{"transport": "", "sums": [0.0] * 8}]}, "$.waves[0].transport"),
        ({"waves": [{"transport": "x" * 65, "sums": [0.0] * 8}]}, "$.waves[0].transport"),
        ({"waves": [{"transport": "gloo", "sums": [0.0, *[1.0] * 7]}]}, "$.waves[0].sums"),
        ({"waves": [{"transport": str(i), "sums": [0.0] * 8} for i in range(9)]}, "$.waves"),
        ({"set_aside": -1}, "$.set_aside"),
        ({"set_aside": 1 << 60}, "$.set_aside"),
        ({"coordinates": {"pp": -1}}, "$.coordinates.pp"),
    ],
)
def test_waves_and_counts_that_cannot_be_are_refused(
    balancer: RunningBalancer, job: str, kind: str, changes: dict[str, Any], field: str
) -> None:
    """Whatever the encoding, each fault is named with its place."""
    response = post(balancer, job, encoded(fields(job, **changes), kind), kind)

    assert_problem(response, 422, field)


def test_more_micro_batches_than_a_report_may_carry_are_refused(
    balancer: RunningBalancer, job: str
) -> None:
    """A step names 256 micro-batches at most."""
    report = fields(job)
    report["steps"][0]["home_pairs"] = [1.0] * 257
    response = post(balancer, job, encoded(report, "application/json"), "application/json")

    assert_problem(response, 422, "$.steps[0].home_pairs")


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

    def is_kept() -> bool:
        response = post(balancer, job, body, kind)
        assert_problem(response, status, field)
        return connection(response) == connection(balancer.client.get("/livez"))

    # More than one try: a connection that is idle for seconds is given up by either side.
    wait_for(is_kept)


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
            report.moments[0].points = [(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)] * 256
            url, body = "/api/v1/jobs/j/reports", encode_report(report)
            refused = await client.post(url, content=body, headers=MSGPACK)
            ready = await client.get("/readyz")
            database.execute("PRAGMA max_page_count = 100000").fetchone()
            taken = await client.post(url, content=body, headers=MSGPACK)

            assert (refused.status_code, ready.status_code, taken.status_code) == (503, 503, 202)
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            assert service.jobs["j"].job.summary(service.now_s())["reports"] == 2

    asyncio.run(go())
