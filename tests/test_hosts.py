"""Names that lead here and pages that may ask: no other site reaches the balancer by a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libra.balancer.access_settings import AccessSettings
from libra.balancer.hosts import Hosts
from tests.application import assert_problem
from tests.guarded import GuardedBalancer, guarded_balancer, token_file


@pytest.fixture
def open_balancer(tmp_path: Path) -> Iterator[GuardedBalancer]:
    """A balancer on loopback that asks nobody, as most are."""
    access = AccessSettings(trusted_hosts=("balancer.example",))
    with guarded_balancer(tmp_path / "s", access) as balancer:
        assert balancer.report("mine").status_code == 202
        yield balancer


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:8765")),
        *((host, True) for host in ("[::1]:8765", "192.0.2.7", "Bound.example.", "trusted:9")),
        *((host, False) for host in ("evil.example", "localhost.evil.example", "trusted.evil", "")),
        *((host, False) for host in ("127.0.0.1.evil.example", "evil.example:127.0.0.1", "[evil]")),
    ],
)
def test_which_names_are_ours(host: str, known: bool) -> None:
    """Addresses and names of this machine, the bound and the trusted ones; no name besides."""
    assert Hosts("bound.example", ["trusted"], open=False).knows(host) is known
    # Where tokens are asked for, a made-up name gets nobody in, unless names were listed.
    assert Hosts("", ["trusted"], open=True).knows("evil.example") is False
    assert Hosts("", [], open=True).knows(host) is True


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", ""])
def test_another_sites_name_leads_nowhere(open_balancer: GuardedBalancer, host: str) -> None:
    """A page whose name was made to lead here reads nothing and changes nothing."""
    for method, path in (("GET", "/api/v1/jobs"), ("PUT", "/api/v1/jobs/mine/mode"), ("GET", "/")):
        answer = open_balancer.ask(method, path, headers={"Host": host}, json={"mode": "adapt"})
        assert_problem(answer, 400)
        assert "trusted_hosts" in answer.json()["detail"]
    assert open_balancer.service.jobs["mine"].job.mode == "observe"
    assert open_balancer.gate.refused["host"] == 3


def test_a_trusted_name_and_an_address_do(open_balancer: GuardedBalancer) -> None:
    """What the operator listed works, and so does the address itself."""
    for host in ("balancer.example", "localhost:1", "127.0.0.1"):
        assert open_balancer.ask("GET", "/api/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:8765"}, 200),
        ({"Origin": "https://balancer.example"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://other.example"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:8765"}, 403),
    ],
)
def test_pages_of_other_sites_change_nothing(
    open_balancer: GuardedBalancer, headers: dict[str, str], status: int
) -> None:
    """A browser says where a request comes from; ours and no browser's go on, others do not."""
    asked = {"Host": "localhost:8765", **headers}
    path = "/api/v1/jobs/mine/mode"
    answer = open_balancer.ask("PUT", path, headers=asked, json={"mode": "frozen"})
    mode = open_balancer.service.jobs["mine"].job.mode

    assert answer.status_code == status
    assert mode == ("frozen" if status == 200 else "observe")
    assert "access-control-allow-origin" not in answer.headers


def test_a_login_is_not_lent_to_other_sites(tmp_path: Path) -> None:
    """Their requests are refused with the cookie, and so are logins that they begin; a token in
    the header is no browser's doing, and goes on.
    """
    tokens = token_file(tmp_path / "tokens")
    evil = {"Origin": "https://evil.example"}
    admin = tokens.texts["admin"]
    path, mode = "/api/v1/jobs/mine/mode", {"mode": "frozen"}
    with guarded_balancer(tmp_path / "s", AccessSettings(tokens=str(tokens.path))) as balancer:
        balancer.report("mine", admin)
        login: dict[str, Any] = {"json": {"token": admin}}
        assert balancer.ask("POST", "/api/v1/login", headers=evil, **login).status_code == 403
        assert balancer.ask("POST", "/api/v1/login", **login).status_code == 200
        assert balancer.ask("PUT", path, headers=evil, json=mode).status_code == 403
        assert balancer.ask("POST", "/api/v1/logout", headers=evil).status_code == 403
        assert balancer.service.jobs["mine"].job.mode == "observe"
        assert balancer.ask("PUT", path, admin, headers=evil, json=mode).status_code == 200
