"""Where the balancer may listen, and what its settings of access must have."""

from pathlib import Path
from typing import Any

import pytest

from libra.balancer.access_exposure import check_exposure, check_files, exposure_warnings
from libra.balancer.access_rules import job_matches, parse_rules
from libra.balancer.access_settings import AccessSettings
from libra.balancer.listen_settings import ListenSettings

TLS = {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a", "tls_clients": ("read:x",)}
OIDC = {
    "oidc_issuer": "https://issuer.example",
    "oidc_audience": "libra",
    "oidc_scopes": ("report:team/*",),
}
BEYOND = ("0.0.0.0", "::", "192.0.2.1", "balancer.example", "")


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_loopback_someone_must_be_asked(host: str) -> None:
    """Without a way to know who asks it refuses, and names every remedy."""
    with pytest.raises(ValueError, match=r"host=.*tokens.*tls_client_ca.*oidc_issuer.*insecure"):
        check_exposure(ListenSettings(host=host), AccessSettings())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    """As for any tool of one's own machine."""
    listen = ListenSettings(host=host)
    check_exposure(listen, AccessSettings())
    assert exposure_warnings(listen, AccessSettings()) == []


@pytest.mark.parametrize("access", [{"tokens": "t"}, TLS, OIDC, {"insecure_no_auth": True}])
def test_each_remedy_is_enough(access: dict[str, Any]) -> None:
    """And what is allowed without being safe is said."""
    settings = AccessSettings(**access)
    for host in BEYOND:
        check_exposure(ListenSettings(host=host), settings)
    warnings = exposure_warnings(ListenSettings(host="0.0.0.0"), settings)
    assert len(warnings) == (0 if access is TLS else 1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"insecure_no_auth": True, "tokens": "t"}, "insecure_no_auth=True"),
        ({"session_s": 0}, "session_s=0"),
        ({"quota_bytes_per_s": float("nan")}, "quota_bytes_per_s=nan"),
        ({"tls_cert": "c"}, "must come with tls_key"),
        ({"tls_key": "c"}, "must come with tls_cert"),
        ({"tls_client_ca": "c"}, "must come with tls_clients"),
        (TLS | {"tls_cert": "", "tls_key": ""}, "must come with tls_cert"),
        (TLS | {"tls_clients": ("root:x",)}, "tls_clients='root:x'"),
        (TLS | {"tls_clients": ("report:x",)}, "must name the jobs"),
        (TLS | {"tls_clients": ("report:x=a*b",)}, "must be a name, or its beginning"),
        (TLS | {"tls_clients": ("admin:x=a",)}, "only the scope report"),
        (OIDC | {"oidc_audience": ""}, "must come with oidc_audience"),
        (OIDC | {"oidc_scopes": ()}, "must come with oidc_scopes"),
        (OIDC | {"oidc_issuer": "http://issuer.example"}, "must be https"),
        (OIDC | {"oidc_jwks": "http://a@127.0.0.1.example/"}, "must be https"),
        (OIDC | {"oidc_jwks": "ftp://127.0.0.1/"}, "must be https"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], text: str) -> None:
    """The message names the setting, its value and what is missing."""
    with pytest.raises(ValueError, match=text.replace("*", r"\*")):
        AccessSettings(**given)


def test_files_are_looked_at_before_anything_listens(tmp_path: Path) -> None:
    """One that is missing or holds something else is named with the setting."""
    text = tmp_path / "text"
    text.write_text("no certificate")
    text.chmod(0o600)
    with pytest.raises(ValueError, match=r"tls_cert=.*must be PEM files"):
        check_files(AccessSettings(tls_cert=str(text), tls_key=str(text)))
    with pytest.raises(ValueError, match=r"tls_key=.*cannot be read"):
        check_files(AccessSettings(tls_cert=str(text), tls_key="/missing"))
    with pytest.raises(ValueError, match=r"tokens=.*line 1"):
        check_files(AccessSettings(tokens=str(text)))


def test_rules_bind_accounts_to_their_own_jobs() -> None:
    """By default those that begin with the namespace and a dot, which no namespace can have."""
    own, named, read = parse_rules("r", ["report:a/*", "report:b/c=x-{name}*", "read:*@example"])
    fields = {"namespace": "a", "name": "n"}

    assert own.matches("a/n")
    assert not own.matches("ab/n")
    assert not named.matches("b/cd")
    assert read.matches("alice@example")
    assert not read.matches("alice@example.org")
    assert (own.jobs_of(fields), named.jobs_of(fields)) == ("a.*", "x-n*")
    assert own.jobs_of({"name": "someone"}) == ""
    assert job_matches("a.*", "a.run")
    assert not job_matches("a.*", "a-run")
    assert not job_matches("a", "a.run")
    assert not job_matches("", "")
