"""HTTPS, and clients that show who they are by a certificate."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from libra.balancer.access_settings import AccessSettings
from libra.balancer.peer_certificate import common_name
from tests.certificates import Certificate, make_certificate
from tests.guarded import GuardedBalancer, guarded_balancer, token_file


@pytest.fixture
def authority(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path, "authority")


@pytest.fixture
def guarded(tmp_path: Path, authority: Certificate) -> Iterator[GuardedBalancer]:
    """A balancer that knows clients by their certificates, and asks for nothing else."""
    server = make_certificate(tmp_path, "balancer", by=authority)
    settings = AccessSettings(
        tls_cert=str(server.cert),
        tls_key=str(server.key),
        tls_client_ca=str(authority.cert),
        tls_clients=("admin:ops", "report:node-*=job-*", "report:own=own-{name}"),
    )
    context = ssl.create_default_context(cafile=str(authority.cert))
    with guarded_balancer(tmp_path / "s", settings, verify=context) as balancer:
        yield balancer


def ask(
    balancer: GuardedBalancer, authority: Certificate, client: Certificate | None, path: str
) -> httpx.Response:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if client is not None:
        context.load_cert_chain(*client.pair)
    return httpx.get(f"{balancer.url}{path}", verify=context, timeout=20)


def test_a_certificate_says_who_asks(
    tmp_path: Path, guarded: GuardedBalancer, authority: Certificate
) -> None:
    """Its common name has the scope of the first rule that matches, and none if no rule does."""
    ops = make_certificate(tmp_path, "ops", by=authority)
    node = make_certificate(tmp_path, "node-7", by=authority)
    stranger = make_certificate(tmp_path, "stranger", by=authority)

    assert ask(guarded, authority, ops, "/api/v1/jobs").status_code == 200
    assert ask(guarded, authority, ops, "/api/v1/session").json()["name"] == "certificate:ops"
    assert ask(guarded, authority, node, "/api/v1/jobs").status_code == 403
    assert ask(guarded, authority, node, "/api/v1/jobs/job-1/policy").status_code == 404
    assert ask(guarded, authority, node, "/api/v1/jobs/other/policy").status_code == 403
    assert ask(guarded, authority, stranger, "/api/v1/jobs").status_code == 401
    # A kubelet has no certificate.
    assert ask(guarded, authority, None, "/livez").status_code == 200
    assert ask(guarded, authority, None, "/api/v1/jobs").status_code == 401


def test_a_certificate_that_no_authority_signed_gets_nowhere(
    tmp_path: Path, guarded: GuardedBalancer, authority: Certificate
) -> None:
    """Nor one that is over: the connection ends before a request, probes included."""
    other = make_certificate(tmp_path, "authority")
    for client in (
        make_certificate(tmp_path, "ops", by=other),
        make_certificate(tmp_path, "ops"),
        make_certificate(tmp_path, "ops", by=authority, days=-1),
    ):
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            ask(guarded, authority, client, "/livez")


def test_a_header_is_no_certificate(guarded: GuardedBalancer) -> None:
    """Only the handshake says who a client is: no header that a proxy might set counts."""
    for name in ("X-Client-CN", "X-SSL-Client-S-DN", "certificate", "X-Forwarded-Client-Cert"):
        assert guarded.ask("GET", "/api/v1/jobs", headers={name: "ops"}).status_code == 401


def test_a_cookie_over_https_stays_on_https(tmp_path: Path, authority: Certificate) -> None:
    """Secure with TLS and not without, unreadable for scripts, and for no other site's pages."""
    tokens = token_file(tmp_path / "tokens")
    server = make_certificate(tmp_path, "balancer", by=authority)
    plain = AccessSettings(tokens=str(tokens.path))
    secure = AccessSettings(
        tokens=str(tokens.path), tls_cert=str(server.cert), tls_key=str(server.key)
    )
    context = ssl.create_default_context(cafile=str(authority.cert))
    cookies = []
    for number, settings in enumerate((plain, secure)):
        store = tmp_path / f"s{number}"
        with guarded_balancer(store, settings, verify=context) as balancer:
            answer = balancer.ask(
                "POST",
                "/api/v1/login",
                json={"token": tokens.texts["read"]},
                # No proxy was said to be trusted.
                headers={"X-Forwarded-Proto": "https"},
            )
            assert answer.status_code == 200
            assert balancer.ask("GET", "/api/v1/jobs").status_code == 200
            cookies.append(answer.headers["set-cookie"].split("; "))

    assert [("Secure" in cookie) for cookie in cookies] == [False, True]
    for cookie in cookies:
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie)


def test_an_ambiguous_certificate_has_no_name() -> None:
    """Two common names are none: one of them may not have been meant."""
    one = ((("commonName", "ops"),),)
    two = (*one, (("commonName", "node-1"),))

    assert common_name({"subject": one}) == "ops"
    assert common_name({"subject": two}) == common_name({}) == common_name(None) == ""
