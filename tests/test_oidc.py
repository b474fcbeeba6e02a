"""Tokens of an issuer, such as a Kubernetes cluster's: only its own, only for us, only in time."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from libra.balancer.access_principal import Principal, RefusedError
from libra.balancer.access_settings import AccessSettings
from libra.balancer.oidc import Issuer
from libra.balancer.oidc_keys import parse_keys
from tests.guarded import guarded_balancer
from tests.issuer import TestIssuer, running_issuer
from tests.running import wait_for

RULES = ("report:team-a/*", "admin:ops/root", "read:alice@example.org")


@pytest.fixture(scope="module")
def shared() -> Iterator[TestIssuer]:
    """An issuer for tests that leave it as it is."""
    with running_issuer() as issuer:
        yield issuer


def settings_of(issuer: TestIssuer, **changes: Any) -> AccessSettings:
    given = {"oidc_issuer": issuer.url, "oidc_audience": "libra", "oidc_scopes": RULES}
    return AccessSettings(**given | changes)


@contextmanager
def known(issuer: TestIssuer, **changes: Any) -> Iterator[Issuer]:
    """What the balancer makes of an issuer, once it has its keys."""
    ours = Issuer(settings_of(issuer, **changes), min_refresh_s=0.05)
    ours.keys.start()
    try:
        wait_for(lambda: ours.keys.keys)
        yield ours
    finally:
        ours.keys.close()


def identify(ours: Issuer, token: str) -> Principal:
    return asyncio.run(ours.identify(token, time.time()))


def refused(ours: Issuer, token: str) -> str:
    with pytest.raises(RefusedError) as error:
        identify(ours, token)
    assert error.value.status == 401
    return error.value.reason


@pytest.mark.parametrize("kid", ["rsa", "ec"])
def test_a_service_account_reports_for_its_own_jobs(shared: TestIssuer, kid: str) -> None:
    """Signed by RSA or an elliptic curve, for as long as the token lasts."""
    with known(shared) as ours:
        principal = identify(ours, shared.token(kid))
        again = identify(ours, shared.token(kid, sub="system:serviceaccount:ops:root"))
        alice = identify(ours, shared.token(kid, sub="alice@example.org"))

    assert (principal.name, principal.scope, principal.job) == (
        "oidc:team-a/trainer",
        "report",
        "team-a.*",
    )
    assert 3600 < principal.expires_s - time.time() < 3700
    assert (again.scope, alice.scope) == ("admin", "read")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "unknown"),
        ({"nbf": 9e9}, "unknown"),
        ({"iss": "https://other.example"}, "unknown"),
        ({"iss": None}, "unknown"),
        ({"aud": ["other"]}, "unknown"),
        ({"aud": None}, "unknown"),
        ({"sub": None}, "unknown"),
        ({"sub": "system:serviceaccount:team-b:trainer"}, "unknown"),
        ({"sub": "system:serviceaccount:team-a:x:y"}, "unknown"),
        ({"sub": "bob@example.org"}, "unknown"),
    ],
)
def test_tokens_that_are_not_for_us(
    shared: TestIssuer, changes: dict[str, Any], reason: str
) -> None:
    """Over, not begun, another issuer's, for another audience, or of someone without a rule."""
    with known(shared) as ours:
        assert refused(ours, shared.token(**changes)) == reason


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_signatures_that_do_not_count(shared: TestIssuer) -> None:
    """None at all, a shared secret, the public key taken for one, another key's, a changed
    claim, or an algorithm that is not the key's.
    """
    token = shared.token()
    head, body, signature = token.split(".")
    claims = jwt.decode(token, options={"verify_signature": False})
    public = shared.private["rsa"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    swapped = claims | {"sub": "system:serviceaccount:ops:root"}
    with running_issuer() as other, known(shared) as ours:
        foreign = jwt.encode(
            claims,
            other.private["rsa"],
            algorithm="RS256",
            headers={"kid": "rsa"},
        )
        for forged in (
            f"{part({'alg': 'none', 'kid': 'rsa'})}.{body}.",
            f"{part({'alg': 'none', 'kid': 'rsa'})}.{body}.{signature}",
            f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{body}.{signature}",
            jwt.encode(claims, "k" * 32, algorithm="HS256", headers={"kid": "rsa"}),
            _hmac_by(pem, claims),
            f"{part({'alg': 'ES256', 'kid': 'rsa'})}.{body}.{signature}",
            f"{part({'alg': 'RS256', 'kid': 'ec'})}.{body}.{signature}",
            f"{part({'alg': 'RS256'})}.{body}.{signature}",
            f"{part({'alg': 'RS256', 'kid': ['rsa']})}.{body}.{signature}",
            f"{part({'alg': 'RS256', 'kid': 'none', 'jwk': {}})}.{body}.{signature}",
            f"{head}.{part(swapped)}.{signature}",
            foreign,
            "a.b.c",
            f"{head}.{body}.{'A' * 20_000}",
        ):
            assert refused(ours, forged) in ("malformed", "unknown")
        assert identify(ours, token).scope == "report"


def _hmac_by(secret: bytes, claims: dict[str, Any]) -> str:
    """Sign as an attacker would who knows the public key: libraries refuse to."""
    import hashlib
    import hmac

    text = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims)}"
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def test_keys_that_do_not_count() -> None:
    """Shared secrets, short RSA keys, keys for encryption and other curves are left out."""
    issuer = TestIssuer()
    issuer.add_key("good")
    issuer.add_key("short", bits=1024)
    secret = base64.urlsafe_b64encode(b"k" * 32).decode()
    issuer.extra.append({"kty": "oct", "kid": "secret", "k": secret, "alg": "HS256"})
    issuer.extra.append(json.loads(issuer.jwks())["keys"][0] | {"kid": "enc", "use": "enc"})
    issuer.extra.append({"kty": "EC", "kid": "broken", "crv": "P-256"})

    assert set(parse_keys(issuer.jwks())) == {"good"}
    for body in (b"{}", b'{"keys": []}', b"nonsense"):
        with pytest.raises((ValueError, KeyError)):
            parse_keys(body)


def test_rotated_keys_are_taken_up_and_old_ones_end() -> None:
    """A new key works at its first use; a token by a key that the issuer withdrew does not, even
    if it had been accepted before.
    """
    with running_issuer() as issuer, known(issuer) as ours:
        old = issuer.token("rsa")
        assert identify(ours, old).scope == "report"
        issuer.add_key("new")
        issuer.shows.remove("rsa")
        wait_for(lambda: time.monotonic() - ours.keys._refreshed_s > 0.05)

        assert identify(ours, issuer.token("new")).scope == "report"
        assert refused(ours, old) == "unknown"


@pytest.mark.fault
def test_an_issuer_that_is_down_changes_nothing() -> None:
    """Known keys go on; before any is known the answer is to come again, and then they are."""
    with running_issuer() as issuer:
        issuer.down = True
        ours = Issuer(settings_of(issuer), min_refresh_s=0.05)
        ours.keys.start()
        with pytest.raises(RefusedError) as error:
            identify(ours, issuer.token())
        issuer.down = False
        wait_for(lambda: ours.keys.keys)
        issuer.down = True
        faults = ours.keys.faults
        wait_for(ours.keys.refresh_soon)
        wait_for(lambda: ours.keys.faults > faults)
        principal = identify(ours, issuer.token())
        ours.keys.close()

    assert (error.value.status, error.value.headers) == (503, {"Retry-After": "5"})
    assert principal.scope == "report"
    assert ours.keys.fault is not None


def test_strangers_cannot_make_us_fetch() -> None:
    """Keys that nobody has cost one fetch in a while, however many are named."""
    with running_issuer() as issuer:
        ours = Issuer(settings_of(issuer), min_refresh_s=3600)
        ours.keys.start()
        wait_for(lambda: ours.keys.keys)
        issuer.add_key("stranger")
        for _ in range(20):
            assert refused(ours, issuer.token("stranger")) == "unknown"
        ours.keys.close()

    assert issuer.fetches == 1


def test_keys_from_a_file(tmp_path: Path, shared: TestIssuer) -> None:
    """An operator may bring the keys along, for an issuer that cannot be reached."""
    path = tmp_path / "jwks.json"
    path.write_bytes(shared.jwks())
    with known(shared, oidc_jwks=str(path)) as ours:
        assert identify(ours, shared.token()).scope == "report"


def test_the_whole_way_through_a_server(tmp_path: Path, shared: TestIssuer) -> None:
    """A pod's token reports for its namespace's jobs and for no other, and logs nobody else in."""
    with guarded_balancer(tmp_path / "s", settings_of(shared)) as balancer:
        pod = shared.token()
        own = wait_for(lambda: balancer.report("team-a.run", pod).status_code == 202)
        other = balancer.report("team-b.run", pod)
        login = balancer.ask("POST", "/api/v1/login", json={"token": shared.token(sub="eve")})
        stale = balancer.report("team-a.run", shared.token(exp=1))
        log = balancer.log.getvalue()

        assert own
        assert (other.status_code, login.status_code, stale.status_code) == (403, 401, 401)
        assert stale.json()["detail"] == "the token has expired"
        assert pod not in log
        assert "Traceback" not in log
