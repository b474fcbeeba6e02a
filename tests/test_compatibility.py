"""Agent and balancer of neighbouring versions work together; others refuse, and name both."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.agent.agent import Agent
from libra.balancer.compatibility import VERSION_HEADER, neighbours, refusal
from libra.balancer.version import libra_version
from libra.balancer.wire import encode_report
from tests.balancers import Reply, ToldBalancer, eventually
from tests.running import MSGPACK, ROOT, make_report
from tests.test_agent import settings, train

SERVE = """
import sys
from libra.balancer import version
version.libra_version = lambda: sys.argv[1]
from libra.balancer.__main__ import main
sys.exit(main(["serve", "--port", "0", "--store", sys.argv[2]]))
"""
release = st.integers(0, 10**6)


@contextmanager
def balancer_of(version: str, store: Path) -> Iterator[str]:
    """Run the real balancer, installed as it were in this version; give its address."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, version, str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "LIBRA_BALANCER=" in line:
                    yield line.partition("LIBRA_BALANCER=")[2].split()[0]
                    break
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", True),
        ("0.1.0", "0.3.0", False),
        ("1.0.0", "0.9.0", False),
        ("1.4.0rc1", "1.5.0.dev3+g12ab", True),
        ("0+unknown", "3.7.1", True),
        ("0+unknown", "nonsense", True),
        ("nonsense", "0.1.0", False),
        ("nonsense", "nonsense", True),
        ("", "0.1.0", False),
        ("99999999999999999999.1", "0.1.0", False),
    ],
)
def test_neighbours_are_one_minor_version_apart(one: str, other: str, expected: bool) -> None:
    """One step of a rolling upgrade works; what cannot be read works with itself alone."""
    assert neighbours(one, other) == expected
    assert neighbours(other, one) == expected


@given(release, release, release, st.text(max_size=20))
def test_patches_and_suffixes_do_not_matter(major: int, minor: int, patch: int, tail: str) -> None:
    """Whatever follows the minor version, the answer depends on major and minor alone."""
    own = f"{major}.{minor}"
    assert neighbours(own, f"{own}.{patch}{tail}")
    assert not neighbours(own, f"{major + 1}.{minor}.{patch}{tail}")
    assert not neighbours(own, f"{major}.{minor + 2}.{patch}{tail}")


@given(st.text(), st.text())
def test_a_refusal_is_one_line_of_plain_text(one: str, other: str) -> None:
    """A version comes from the network: nothing in it reaches a log or a header as it is."""
    text = refusal(one, other)
    assert text.isprintable()
    assert len(text) < 400


def test_a_balancer_turns_a_foreign_agent_away(tmp_path: Path) -> None:
    """Reports, batches and policies get 426 with both versions; pages and curl get answers."""
    report = make_report("job")
    with balancer_of("7.1.0", tmp_path / "db") as url, httpx.Client(base_url=url) as client:
        for version, status in (("7.3.0", 426), ("7.2.9", 202), ("7.1.0", 202), (None, 202)):
            headers = MSGPACK | ({VERSION_HEADER: version} if version else {})
            answer = client.post(
                "/api/v1/jobs/job/reports", content=encode_report(report), headers=headers
            )
            assert answer.status_code == status
            assert answer.headers[VERSION_HEADER] == "7.1.0"
            if status == 426:
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["status"] == 426
                assert "agent 7.3.0 and balancer 7.1.0" in answer.json()["detail"]
        foreign = {VERSION_HEADER: "9.9"}
        statuses = {
            path: client.get(f"/api/v1/jobs{path}", headers=foreign).status_code
            for path in ("", "/job/policy", "/job/ranks")
        }
        assert statuses == {"": 200, "/job/policy": 426, "/job/ranks": 200}
        views = client.get("/api/v1/jobs").json()
        assert [job["job"] if "job" in job else job["name"] for job in _rows(views)] == ["job"]


def _rows(views: object) -> list[dict[str, object]]:
    rows = views["jobs"] if isinstance(views, dict) else views
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize(("version", "works"), [("7.0.0", True), ("7.2.0", False)])
def test_a_real_agent_meets_a_real_balancer(
    version: str,
    works: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neighbours exchange reports; a foreign agent says so once, keeps quiet, and trains on."""
    monkeypatch.setattr("libra.agent.channel.libra_version", lambda: version)
    with (
        balancer_of("7.0.3" if works else "7.0.0", tmp_path / "db") as url,
        Agent(settings(url)) as agent,
    ):
        train(agent, steps=3)
        reporter = agent._reporter
        if works:
            assert eventually(lambda: reporter.sent > 0)
        else:
            assert eventually(lambda: reporter._backoff.failures >= 2)
            assert not reporter.sent
            assert reporter.unsent_steps == 3
    foreign = [line for line in caplog.messages if "do not work together" in line]
    assert len(foreign) == (0 if works else 1)
    assert works or "agent 7.2.0 and balancer 7.0.0" in foreign[0]


@pytest.mark.fault
def test_an_agent_refuses_a_foreign_balancer(caplog: pytest.LogCaptureFixture) -> None:
    """A balancer too old to refuse is refused by its header, and asked at the slowest pace."""
    foreign = Reply(headers={VERSION_HEADER: "99.0.0"})
    with (
        ToldBalancer(lambda _: foreign) as balancer,
        Agent(settings(balancer.url, first_retry_s=0.01, max_retry_s=600.0)) as agent,
    ):
        train(agent, steps=1)
        reporter = agent._reporter
        assert eventually(lambda: reporter._backoff.failures == 1)
        assert not eventually(lambda: len(balancer.asked("POST")) > 1, timeout_s=0.3)
        assert reporter.sent == 0
        assert balancer.requests[0].headers[VERSION_HEADER.lower()] == libra_version()
    assert caplog.text.count("balancer 99.0.0 do not work together") == 1
