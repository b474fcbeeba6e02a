"""``libra status``, ``jobs`` and ``top --once`` say what the API says, or in one line why not."""

import json
import os
from pathlib import Path

import pytest

from libra.balancer import __main__ as command
from libra.balancer.client import Client, ClientError
from libra.balancer.client_options import choose
from libra.balancer.terminal import bytes_text, duration_text, plain, sparkline
from tests.balancers import Reply, Request, ToldBalancer
from tests.feed import Feed
from tests.nginx import free_port
from tests.running import RunningBalancer, make_report, serve, wait_for


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("LIBRA_BALANCER", raising=False)
    monkeypatch.delenv("LIBRA_TOKEN_FILE", raising=False)


def test_status(balancer: RunningBalancer, capsys: pytest.CaptureFixture[str]) -> None:
    """One screen: ready, role, version, jobs, store and queue."""
    assert command.main(["status", "--url", balancer.url]) == 0

    said = capsys.readouterr().out
    status = balancer.client.get("/api/v1/status").json()
    for text in (balancer.url, "ready", "active, up for", status["version"]):
        assert text in said
    assert status["store"]["label"] in said
    assert len(said.splitlines()) < 20


def test_status_of_one_that_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    """It says why, and the exit status tells scripts."""
    status = {
        "version": "1.2.3",
        "role": "standby",
        "ready": False,
        "not_ready": "another [one] leads",
        "uptime_seconds": 7300.0,
        "jobs": {"active": 1, "stale": 0, "finished": 2},
        "queue": {"waiting": 0, "capacity": 5},
        "store": {
            "label": "db/libra",
            "healthy": False,
            "waiting": 1,
            "capacity": 2,
            "size_bytes": 3 << 20,
        },
        "open_streams": 0,
        "waiting_polls": 0,
    }

    with ToldBalancer(lambda _: Reply(status=200, body=json.dumps(status).encode())) as told:
        assert command.main(["status", "--url", told.url]) == 1

    said = capsys.readouterr().out
    for text in (
        "not ready: another [one] leads",
        "standby, up for 2 h 1 min",
        "3.0 MiB, the last",
    ):
        assert text in said


def test_jobs(feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a job: name, state, ranks, step, skew, mode and cause; or all of it as JSON."""
    url = feed.balancer.url
    summary = feed.balancer.view(feed.job)

    assert command.main(["jobs", "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith(f"{feed.job} "))
    for text in (
        "active",
        " 4 ",
        " 15 ",
        f"{summary['skew']:.2f}",
        "observe",
        # Other jobs' names may leave little room for the rest of it.
        summary["diagnosis"][:12],
    ):
        assert text in line

    assert command.main(["jobs", "--url", url, "--json"]) == 0
    told = {job["job"]: job for job in json.loads(capsys.readouterr().out)}
    assert told[feed.job]["diagnosis"] == summary["diagnosis"]


def test_top_once(feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    """One frame of all jobs, or of one: the slowest rank leads, with its share of the mean."""
    url = feed.balancer.url
    feed.run(4, slow={2: 3.0})

    assert command.main(["top", "--url", url, "--once"]) == 0
    assert feed.job in capsys.readouterr().out
    assert command.main(["top", feed.job, "--url", url, "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ranks = lines[next(i for i, line in enumerate(lines) if "of mean" in line) + 1 :]

    assert ranks[0].split()[0] == "2"
    assert len(ranks) == 4
    assert any(set(line) & set("▁▂▃▄▅▆▇█") for line in lines)


def test_over_a_unix_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """unix:///path is an address like any other."""
    uds, address = tmp_path / "s.sock", tmp_path / "address.json"
    options = ("--uds", str(uds), "--address-file", str(address))
    with (tmp_path / "log").open("w") as log, serve(tmp_path / "s", *options, stderr=log):
        wait_for(address.exists)
        url = json.loads(address.read_text())["url"]

        assert command.main(["status", "--url", url]) == 0
        assert f"unix://{uds}, ready" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["status", "jobs", "top"])
def test_nobody_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names the address; the status is 1."""
    url = f"http://127.0.0.1:{free_port()}"

    assert command.main([name, "--url", url]) == 1

    errors = capsys.readouterr().err
    assert errors.startswith(f"libra {name}: {url}: ")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--url", "ftp://h"], "url='ftp://h': must be like http://host:8765"),
        (["--url", "http://"], "url='http://': must be like http://host:8765"),
        (["--timeout", "0"], "timeout=0: must be in (0, 3600] seconds"),
        (["--token-file", "/none"], "token_file='/none': cannot be read: No such file"),
        (["--token-file", os.devnull], "must hold one token and nothing else"),
    ],
)
def test_wrong_settings(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the setting, its value and what is allowed; the status is 2."""
    assert command.main(["status", *arguments]) == 2

    errors = capsys.readouterr().err
    assert text in errors
    assert len(errors.splitlines()) == 1


def test_answers_that_are_none() -> None:
    """Garbage, a refusal, silence and a trickle each end in one line, within the deadline."""
    replies = {
        "/garbage": Reply(raw=b"\x00\x01 nothing of HTTP\r\n\r\n"),
        "/html": Reply(status=200, body=b"<html>"),
        "/refused": Reply(status=401, body=b'{"detail": "who are you?"}'),
        "/proxy": Reply(status=502, body=b"<html>bad gateway"),
        "/hang": Reply(hang=True),
        "/trickle": Reply(status=200, body=b"x" * 100, gap_s=0.05),
    }

    def answer(request: Request) -> Reply:
        return replies[request.path]

    with ToldBalancer(answer) as told, Client(told.url, timeout_s=0.5) as client:
        for path, text in {
            "/garbage": "",
            "/html": "no JSON",
            "/refused": "who are you?",
            "/proxy": "status 502",
            "/hang": "no answer within 0.5 s",
            "/trickle": "no answer within 0.5 s",
        }.items():
            with pytest.raises(ClientError) as raised:
                client.view(path)
            assert text in str(raised.value)
            assert "\n" not in str(raised.value)


def test_who_asks_and_whom(tmp_path: Path) -> None:
    """An argument goes before the environment; the token travels in a header, with the version."""
    token = tmp_path / "token"
    token.write_text("libra_abc\n")
    environ = {"LIBRA_BALANCER": "http://b:1", "LIBRA_TOKEN_FILE": "/t"}

    assert choose(None, "LIBRA_BALANCER", {}) == ""
    assert choose(None, "LIBRA_BALANCER", environ) == "http://b:1"
    assert choose("http://c", "LIBRA_BALANCER", environ) == "http://c"
    assert choose(None, "LIBRA_TOKEN_FILE", environ) == "/t"
    with (
        ToldBalancer(lambda _: Reply(status=200, body=b"{}")) as told,
        Client(f"{told.url}/a/b/", token_file=str(token)) as client,
    ):
        client.view("/api/v1/jobs", last=3)
    [asked] = told.requests
    assert asked.path == "/a/b/api/v1/jobs?last=3"
    assert asked.headers["authorization"] == "Bearer libra_abc"
    assert asked.headers["libra-version"]


def test_names_are_no_markup(balancer: RunningBalancer, capsys: pytest.CaptureFixture[str]) -> None:
    """What a job says of itself is shown as it is, and cannot move the cursor."""
    assert plain("[red]a[/]\x1b[2J\n") == r"\[red]a\[/]?[2J?"
    balancer.send(make_report("a@b:c", node="n"))
    assert command.main(["jobs", "--url", balancer.url]) == 0
    assert "a@b:c" in capsys.readouterr().out


def test_figures_for_people() -> None:
    """Sizes and times have two or three digits, and a course shows its ends and its gaps."""
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert [duration_text(s) for s in (3, 61, 7260, 90000)] == [
        *("3 s", "1 min 1 s", "2 h 1 min", "1 d 1 h")
    ]
    assert sparkline([1.0, None, 2.0], 8) == "▁ █"
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert sparkline([None], 8) == sparkline([], 8) == ""
    assert len(sparkline([float(n) for n in range(50)], 8)) == 8
