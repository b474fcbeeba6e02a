"""Reports are taken once and acknowledged, or refused with a reason."""

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from libra.balancer.batch import batch_of, encode_batch
from libra.balancer.wire import encode_report
from tests.application import VIEWS, assert_problem, open_service, send
from tests.disk import failing_disk
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

    etag = balancer.client.get(f"/api/v1/jobs/{job}/policy").headers["etag"]
    answer = {"accepted": True, "duplicate": False, "policy": etag}
    assert (response.status_code, response.json()) == (202, answer)
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


def gzipped(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def upload(
    balancer: RunningBalancer, url: str, body: bytes, encoding: str = "gzip"
) -> httpx.Response:
    headers = MSGPACK | {"Content-Encoding": encoding}
    return balancer.client.post(f"/api/v1/jobs/{url}", content=body, headers=headers)


@pytest.mark.parametrize("kind", ["application/msgpack", "application/json"])
def test_a_nodes_batch_is_taken_row_by_row(balancer: RunningBalancer, job: str, kind: str) -> None:
    """Good rows are taken though others are refused, and the answer says which and why."""
    reports = [make_report(job, rank=rank) for rank in range(2)]
    reports[1].steps[0].seconds = -1.0
    batch = batch_of(reports)
    body = encode_batch(batch) if "msgpack" in kind else msgspec.json.encode(batch)
    url = f"/api/v1/jobs/{job}/batches"
    answers = [
        balancer.client.post(url, content=body, headers={"Content-Type": kind}) for _ in range(2)
    ]

    etag = balancer.client.get(f"/api/v1/jobs/{job}/policy").headers["etag"]
    assert [answer.status_code for answer in answers] == [202, 202]
    refused = {
        "row": 1,
        "field": "$.steps[0].seconds",
        "reason": "negative",
        "detail": "$.steps[0].seconds: -1.0 is negative",
    }
    for answer, (accepted, duplicates) in zip(answers, ((1, 0), (0, 1)), strict=True):
        shown = answer.json()
        refused["detail"] = shown["refused"][0]["detail"]
        assert shown == {
            "accepted": accepted,
            "duplicates": duplicates,
            "late": 0,
            "refused": [refused],
            "policy": etag,
        }
    summary = balancer.view(job)
    assert (summary["reports"], summary["duplicates"], summary["rejected"]) == (1, 1, 2)


def test_a_batch_without_a_good_row_is_a_problem(balancer: RunningBalancer, job: str) -> None:
    """422 with the first fault, and no job comes of it."""
    reports = [make_report(job, rank=5 + rank) for rank in range(2)]
    body = encode_batch(batch_of(reports))
    response = balancer.client.post(f"/api/v1/jobs/{job}/batches", content=body, headers=MSGPACK)

    assert_problem(response, 422, "$.rank")
    assert balancer.client.get(f"/api/v1/jobs/{job}").status_code == 404


def test_rows_of_a_launch_that_was_given_up_are_late(balancer: RunningBalancer, job: str) -> None:
    """They are acknowledged, so that nobody sends them again, and counted."""
    batch = batch_of([make_report(job, rank=rank) for rank in range(2)])
    balancer.send(make_report(job, attempt=1))
    url, body = f"/api/v1/jobs/{job}/batches", encode_batch(batch)
    answer = balancer.client.post(url, content=body, headers=MSGPACK).json()

    assert (answer["accepted"], answer["late"]) == (0, 2)
    assert balancer.view(job)["late"] == 2


def test_bodies_may_be_compressed(balancer: RunningBalancer, job: str) -> None:
    """gzip is inflated, for reports and batches."""
    report = encode_report(make_report(job))
    batch = encode_batch(batch_of([make_report(job, rank=rank) for rank in range(2)]))

    assert upload(balancer, f"{job}/reports", gzipped(report)).status_code == 202
    assert upload(balancer, f"{job}/batches", gzipped(batch)).json()["duplicates"] == 1


@pytest.mark.parametrize(
    ("status", "field", "encoding", "body"),
    [
        (413, None, "gzip", gzipped(bytes((4 << 20) + 1))),
        (413, None, "gzip", gzipped(bytes(400 << 20))),
        (400, "$", "gzip", b"no gzip"),
        (400, "$", "gzip", gzipped(b"x" * 1000)[:-9]),
        (400, "$", "gzip", gzipped(b"") + b"more"),
        (400, "$", "gzip", gzipped(b"") + gzipped(b"")),
        (400, "$", "gzip", b""),
        (415, None, "br", b""),
        (415, None, "gzip, gzip", b""),
    ],
)
def test_what_does_not_inflate_within_the_limit_is_refused(
    balancer: RunningBalancer, job: str, status: int, field: str | None, encoding: str, body: bytes
) -> None:
    """A bomb is refused where it passes the limit, and rubbish where it is none."""
    response = upload(balancer, f"{job}/reports", body, encoding)

    assert_problem(response, status, field)
    assert (response.headers.get("accept-encoding") == "gzip") == (status == 415)


def test_a_body_that_announces_too_much_is_not_waited_for(
    balancer: RunningBalancer, job: str
) -> None:
    """The answer comes before the body: no byte of it is read."""
    host, port = balancer.client.base_url.host, balancer.client.base_url.port
    head = (
        f"POST /api/v1/jobs/{job}/reports HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/msgpack\r\nContent-Length: {5 << 20}\r\n\r\n"
    )
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 413")


@pytest.mark.fault
def test_a_full_queue_asks_for_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 with Retry-After, and the refused report has left no trace."""

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            with monkeypatch.context() as patch:
                patch.setattr(service.queue, "capacity", 0)
                refused = await send(client, 1)
            again = await send(client, 1)
            summary = service.jobs["j"].job.summary(service.now_s())

            assert_problem(refused, 429)
            assert int(refused.headers["retry-after"]) >= 1
            assert (again.json()["accepted"], again.json()["duplicate"]) == (True, False)
            assert summary["reports"] == 2
            assert +service.results == {"accepted": 2, "queue_full": 1}

    asyncio.run(go())


@pytest.mark.fault
def test_reports_are_taken_while_the_disk_fails(tmp_path: Path) -> None:
    """They are kept in memory and written once it works; meanwhile the balancer is not ready."""

    async def go() -> None:
        async with open_service(tmp_path / "s.sqlite") as (service, client):
            await send(client)
            with failing_disk() as disk:
                await service.flusher.all_durable(service.jobs.values())
                taken = await send(client, 1)
                ready = await client.get("/readyz")
                assert disk.reached.is_set()
            await service.flusher.durable(service.jobs["j"])
            again = await client.get("/readyz")

            assert taken.status_code == 202
            assert (taken.json()["accepted"], taken.json()["duplicate"]) == (True, False)
            assert (ready.status_code, again.status_code) == (503, 200)
        async with open_service(tmp_path / "s.sqlite") as (service, _):
            assert service.jobs["j"].job.summary(service.now_s())["reports"] == 2

    asyncio.run(go())
