"""``libra doctor`` names what is wrong on the way, in order, with what to do about it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from libra.balancer import __main__ as command
from libra.balancer.client import Client
from libra.balancer.compatibility import neighbours
from libra.balancer.doctor_checks import (
    Check,
    check_access,
    check_all,
    check_clock,
    check_environment,
    check_events,
    check_page,
    check_ready,
    check_version,
)
from tests.balancers import Reply, Request, ToldBalancer
from tests.nginx import free_port
from tests.running import RunningBalancer, make_report

Look = Callable[[Client], Check]


def found(look: Look, **replies: Reply) -> Check:
    """Return what a check finds at a balancer that answers thus, by the end of the path."""

    def answer(request: Request) -> Reply:
        name = request.path.partition("?")[0].rpartition("/")[2].partition(".")[0] or "root"
        return replies.get(name, Reply(status=404, body=b"{}"))

    with ToldBalancer(answer) as told, Client(told.url, timeout_s=2) as client:
        return look(client)


def reply(status: int = 200, *, version: str = "", **members: object) -> Reply:
    headers = {"Libra-Version": version} if version else {}
    return Reply(status=status, headers=headers, body=json.dumps(members).encode())


def test_a_healthy_way(
    balancer: RunningBalancer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Every check of a real balancer passes, and the status says so."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("libra_x")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LIBRA_BALANCER", balancer.url)
    monkeypatch.setenv("LIBRA_JOB", "doctor")
    monkeypatch.setenv("LIBRA_TOKEN_FILE", str(token))
    balancer.send(make_report("doctor"))

    assert command.main(["doctor"]) == 0

    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["ok", name]
        for name in (
            *("environment", "token", "address", "version", "access", "ready"),
            *("clock", "page", "events"),
        )
    ]


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is at fault, and the rest is not guessed at; the status is 1."""
    assert command.main(["doctor", "--url", f"http://127.0.0.1:{free_port()}"]) == 1

    said = capsys.readouterr().out
    assert "fail    address" in said
    assert said.count("skipped") == 6


@pytest.mark.parametrize(
    ("look", "replies", "verdict", "text"),
    [
        (check_version, {"status": reply(version="99.0.0")}, "fail", "balancer 99.0.0"),
        (check_version, {"status": reply(403)}, "skipped", "does not say"),
        (check_ready, {"readyz": reply(503, detail="no disk")}, "fail", "no disk"),
        (check_page, {"root": Reply(status=200, body=b"<title>nginx")}, "fail", "not Libra's"),
        (check_page, {"root": reply(401)}, "ok", "login"),
        (check_page, {"root": Reply(status=200, body=b"<title>Libra")}, "fail", "/static/app.js"),
        (check_events, {"events": reply(403)}, "skipped", "needs the scope read"),
        (check_events, {"events": reply(503)}, "fail", "status 503"),
    ],
)
def test_what_is_wrong_is_named(
    look: Look, replies: dict[str, Reply], verdict: str, text: str
) -> None:
    """Each fault is told in words, with a remedy."""
    check = found(look, **replies)

    assert check.verdict == verdict
    assert text in check.detail
    assert bool(check.remedy) == (verdict == "fail")


@pytest.mark.parametrize(
    ("replies", "verdict", "text"),
    [
        ({"status": reply(200)}, "ok", ""),
        ({"status": reply(401)}, "fail", "expired or revoked"),
        ({"status": reply(403), "policy": reply(404)}, "ok", ""),
        ({"status": reply(403), "policy": reply(403)}, "fail", "another job"),
        ({"status": reply(500)}, "fail", "status 500"),
    ],
)
def test_a_token_is_tried(replies: dict[str, Reply], verdict: str, text: str) -> None:
    """A token that may only report for its job is a good one."""
    check = found(lambda client: check_access(client, {"LIBRA_JOB": "j"}), **replies)

    assert check.verdict == verdict
    assert text in check.detail


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0.0, "ok"), (4.0, "ok"), (60.0, "fail"), (-60.0, "fail")]
)
def test_clocks(seconds: float, verdict: str) -> None:
    """A clock that is off by more than reports bear is told, by the balancer's own time."""
    check = found(lambda client: check_clock(client, lambda: 1e9 - seconds), livez=reply(time=1e9))

    assert check.verdict == verdict
    assert f"{seconds:+.3f} s" in check.detail


def test_a_proxy_that_buffers_is_found() -> None:
    """A stream that says nothing for seconds is held back by something."""
    check = found(check_events, events=Reply(hang=True))

    assert check.verdict == "fail"
    assert "proxy_buffering off" in check.remedy


@pytest.mark.parametrize(
    ("environ", "verdict"),
    [
        ({}, "note"),
        ({"LIBRA_BALANCER": "b", "LIBRA_AGENT": "off"}, "note"),
        ({"LIBRA_BALANCER": "b", "LIBRA_JOB": "no spaces"}, "fail"),
        ({"LIBRA_BALANCER": "b", "LIBRA_JOB": "j"}, "ok"),
    ],
)
def test_the_environment_of_a_job(environ: dict[str, str], verdict: str) -> None:
    """What would keep agents off, or the job nameless, is told."""
    assert [check.verdict for check in check_environment(environ)] == [verdict]


def test_the_token_file_of_a_job(tmp_path: Path) -> None:
    """It must be there, hold something, and be readable by its user alone."""
    token = tmp_path / "token"

    def verdict() -> str:
        *_, check = check_environment({"LIBRA_TOKEN_FILE": str(token)})
        return check.verdict

    assert verdict() == "fail"
    token.touch(0o600)
    assert verdict() == "fail"
    token.write_text("libra_x")
    assert verdict() == "ok"
    token.chmod(0o640)
    assert verdict() == "fail"


def test_a_page_in_its_place_is_no_balancer() -> None:
    """A proxy's own page with status 200 does not pass for a balancer."""
    with (
        ToldBalancer(lambda _: Reply(status=200, body=b"<html>hello")) as told,
        Client(told.url) as client,
    ):
        verdicts = {check.name: check.verdict for check in check_all(client, {})}

    assert verdicts["address"] == "fail"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        *(("1.2.3", "1.3.0", True), ("1.2.3", "1.2.9", True), ("1.2.0", "1.4.0", False)),
        *(("1.2.0", "2.2.0", False), ("0+unknown", "0+unknown", True), ("x", "1.0.0", False)),
    ],
)
def test_versions_that_work_together(one: str, other: str, together: bool) -> None:
    """The same major version, and minor ones at most one apart, whichever is newer."""
    assert neighbours(one, other) == neighbours(other, one) == together
