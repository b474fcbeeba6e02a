"""Whatever is asked of the API, it answers as its own description says, and never with a 5xx.

schemathesis makes up the requests. ``LIBRA_API_SEED=n`` draws others; a failure prints how to
send the request again.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from libra.balancer.answers import ANSWERS
from libra.balancer.status_schemas import EventPage
from tests.api_hooks import DOOMED, JOB
from tests.application import VIEWS
from tests.feed import Feed
from tests.running import ROOT, RunningBalancer, make_report, running_balancer

SEED = os.environ.get("LIBRA_API_SEED", "1")
STREAM = "text/event-stream"
SCOPES = ("read", "admin", "report")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBalancer]:
    """A balancer for these tests alone, with a job whose views are all full."""
    with running_balancer(tmp_path_factory.mktemp("api") / "balancer.sqlite") as running:
        fill(running)
        yield running


def fill(running: RunningBalancer) -> None:
    feed = Feed(balancer=running, job=JOB)
    feed.run(16)
    published = running.client.post(f"/api/v1/jobs/{JOB}/publish", json={"pooling": True})
    assert published.status_code == 200, published.text
    feed.run(16, policy=1)
    assert running.send(make_report(DOOMED)).status_code == 202


def explore(
    url: str,
    *,
    examples: int,
    phases: str,
    described: Path | None = None,
    token: str = "",
    timeout_s: int = 100,
) -> None:
    """Ask all that a balancer's description allows, and more; fail at any surprise.

    Args:
        described: the description, where the balancer does not show it to everybody.
    """
    place = f"{url}/openapi.json" if described is None else str(described)
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", place, "--url", url),
        *("--phases", phases, "--max-examples", str(examples), "--seed", SEED),
        # A description does not say that a report's figures must fit together.
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        *("--request-timeout", "30"),
        *("--generation-database", "none", "--no-color", "--warnings", "off"),
    ]
    if token:
        command += ["--header", f"Authorization: Bearer {token}"]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.api_hooks",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    # It leaves a cache behind where it runs.
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def description(running: RunningBalancer) -> dict[str, Any]:
    described: dict[str, Any] = running.client.get("/openapi.json").json()
    return described


def test_every_answer_is_as_described(served: RunningBalancer) -> None:
    """Good, odd and wrong requests: a documented status, media type, header and shape."""
    explore(served.url, examples=4, phases="coverage,fuzzing")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_answer_is_as_described_for_long(served: RunningBalancer) -> None:
    """The same, for many more requests, and for requests that follow from earlier answers."""
    explore(served.url, examples=400, phases="examples,coverage,fuzzing,stateful", timeout_s=3500)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a balancer that wants tokens, and a token of each scope."""
    directory = tmp_path_factory.mktemp("guarded")
    tokens = {scope: new_token(scope, directory / "tokens") for scope in SCOPES}
    with running_balancer(
        directory / "balancer.sqlite", "--tokens", str(directory / "tokens")
    ) as running:
        running.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        fill(running)
        yield running.url, tokens


def new_token(scope: str, file: Path) -> str:
    command = [sys.executable, "-m", "libra.balancer", "token", "new", "--scope", scope]
    command += ["--file", str(file), *(("--job", JOB) if scope == "report" else ())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return next(word for word in done.stdout.split() if word.startswith("libra_"))


@pytest.mark.parametrize("scope", ["", *SCOPES])
def test_every_answer_is_as_described_to_each_scope(
    guarded: tuple[str, dict[str, str]], scope: str, tmp_path: Path
) -> None:
    """With tokens, too: whoever asks is answered as described, whether let in or not."""
    url, tokens = guarded
    headers = {"Authorization": f"Bearer {tokens['admin']}"}
    # Everybody is to explore the same description, which not everybody may read.
    described = httpx.get(f"{url}/openapi.json", headers=headers, timeout=20).json()
    place = tmp_path / "openapi.json"
    place.write_text(json.dumps(described))

    explore(url, described=place, examples=2, phases="fuzzing", token=tokens.get(scope, ""))


def test_every_route_is_described(served: RunningBalancer) -> None:
    """Each operation names a good answer, and gives every JSON answer a shape that exists."""
    described = description(served)
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert (method, path) in ANSWERS, f"{method} {path} is missing in answers.ANSWERS"
            assert any(status < "400" for status in operation["responses"]), path
            for answer in operation["responses"].values():
                for media, content in answer.get("content", {}).items():
                    assert "json" not in media or "$ref" in content["schema"], (path, media)


@pytest.mark.parametrize("view", ["", *VIEWS])
def test_a_full_view_has_its_shape(served: RunningBalancer, view: str) -> None:
    """Of a job that has everything to show, each view has all fields of its shape and no other."""
    shape = ANSWERS["get", f"/api/v1/jobs/{{job}}{view}"].shape
    assert shape is not None

    shown = served.view(f"{JOB}{view}")
    described = msgspec.json.encode(msgspec.convert(shown, shape))
    assert msgspec.json.decode(described) == shown


@pytest.mark.parametrize(
    "path",
    [
        *("/livez", "/readyz", "/api/v1/jobs", "/api/v1/status", "/api/v1/session"),
        *("/api/v1/events?after=0", "/api/v1/jobs/{job}/events?after=0"),
        "/api/v1/jobs/{job}/policies/1",
    ],
)
def test_what_is_no_jobs_view_has_its_shape(served: RunningBalancer, path: str) -> None:
    """The same for lists, probes, pages of events and single policies."""
    template = path.partition("?")[0].replace("policies/1", "policies/{version}")
    shape = ANSWERS["get", template].shape
    assert shape is not None

    shown = served.client.get(path.replace("{job}", JOB)).json()
    described = msgspec.json.encode(msgspec.convert(shown, shape))
    assert msgspec.json.decode(described) == shown


def test_a_page_of_events_has_events(served: RunningBalancer) -> None:
    """The page before the newest event holds one, of the shape that is described."""
    path = f"/api/v1/jobs/{JOB}/events"
    newest = served.client.get(path, params={"after": -1}).json()["next"]
    page = served.client.get(path, params={"after": newest - 1}).json()

    assert [event["id"] for event in page["events"]] == [newest]
    assert msgspec.convert(page, EventPage).resync is False


def test_a_description_tells_who_is_asked(
    served: RunningBalancer, guarded: tuple[str, dict[str, str]]
) -> None:
    """Where nobody is asked it names no credentials; elsewhere all but the free routes want one."""
    url, tokens = guarded
    headers = {"Authorization": f"Bearer {tokens['read']}"}
    asking = httpx.get(f"{url}/openapi.json", headers=headers, timeout=20).json()
    free = {
        path
        for path, operations in asking["paths"].items()
        for operation in operations.values()
        if operation.get("security") == []
    }

    assert description(served)["security"] == []
    assert asking["security"] == [{"token": []}, {"session": []}]
    assert free == {
        *("/livez", "/readyz"),
        *("/api/v1/session", "/api/v1/login", "/api/v1/logout"),
    }


def test_streams_answer_as_described(served: RunningBalancer) -> None:
    """An event stream begins with a documented status and media type, whatever the last id."""
    described = description(served)["paths"]
    streams = [
        (path, operation["get"]["responses"])
        for path, operation in described.items()
        if STREAM in json.dumps(operation.get("get", {}).get("responses", {}))
    ]
    assert streams
    for path, responses in streams:
        for last in ("", "0", "-1", "x", "9" * 30, "\xff"):
            headers = {"Accept": STREAM, "Last-Event-ID": last.encode("latin-1")}
            address = path.replace("{job}", JOB)
            with served.client.stream("GET", address, headers=headers) as stream:  # type: ignore[arg-type]
                assert str(stream.status_code) in responses, (path, last)
                if stream.status_code == 200:
                    assert stream.headers["content-type"].startswith(STREAM)


def test_the_table_names_no_route_that_is_gone(served: RunningBalancer) -> None:
    """What the description's table says is about operations that exist."""
    described = description(served)["paths"]

    assert [key for key in ANSWERS if key[0] not in described.get(key[1], {})] == []
