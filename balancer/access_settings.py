"""Who may ask the balancer for what."""

from dataclasses import dataclass

from libra.balancer.access_rules import parse_rules
from libra.balancer.listen_settings import is_loopback
from libra.balancer.options import option


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessSettings:
    """Who may ask the balancer for what.

    Attributes:
        tls_clients, oidc_scopes: rules ``SCOPE:WHO`` or ``report:WHO=JOBS``; the first that
            matches counts, and whom none matches may do nothing.
    """

    tokens: str = option("", help="file of access tokens, made by libra token new")
    insecure_no_auth: bool = option(False, help="listen beyond loopback without any access control")
    trusted_hosts: tuple[str, ...] = option((), help="more names by which browsers reach it")
    metrics_auth: bool = option(True, help="where tokens are asked for, ask on /metrics too")
    session_s: float = option(43_200.0, help="seconds after which a browser must log in again")
    tls_cert: str = option("", help="certificate chain to serve HTTPS with, PEM")
    tls_key: str = option("", help="private key of tls_cert, PEM")
    tls_reload_s: float = option(60.0, help="seconds after which a renewed certificate is noticed")
    tls_client_ca: str = option("", help="authorities whose client certificates count, PEM")
    tls_clients: tuple[str, ...] = option(
        (), help="what clients with a certificate may do, such as admin:NAME or report:NAME=JOBS"
    )
    oidc_issuer: str = option("", help="issuer of JSON web tokens, such as a Kubernetes cluster's")
    oidc_audience: str = option("", help="audience that these tokens must be made for")
    oidc_jwks: str = option("", help="file or address of the issuer's keys, if not discovered")
    oidc_scopes: tuple[str, ...] = option(
        (), help="what their bearers may do, such as report:NAMESPACE/* or read:SUBJECT"
    )
    oidc_ca: str = option("", help="authorities to trust when the issuer's keys are fetched, PEM")
    oidc_token: str = option("", help="file of a token to fetch the issuer's keys with")
    oidc_refresh_s: float = option(300.0, help="seconds after which the keys are fetched again")
    quota_requests_per_s: float = option(5000.0, help="requests a second of one token or job")
    quota_bytes_per_s: float = option(2.0**28, help="bytes a second of one token or job")

    def __post_init__(self) -> None:
        if self.insecure_no_auth and self.guarded:
            raise ValueError(
                "insecure_no_auth=True: must not be combined with tokens, tls_client_ca or "
                "oidc_issuer"
            )
        for name in (
            "session_s",
            "tls_reload_s",
            "oidc_refresh_s",
            "quota_requests_per_s",
            "quota_bytes_per_s",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")
        self._check_tls()
        self._check_oidc()

    @property
    def guarded(self) -> bool:
        """Whether a request must show who sent it."""
        return bool(self.tokens or self.tls_client_ca or self.oidc_issuer)

    def _check_tls(self) -> None:
        _together(self, "tls_cert", "tls_key")
        _together(self, "tls_client_ca", "tls_clients")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError(f"tls_client_ca={self.tls_client_ca!r}: must come with tls_cert")
        parse_rules("tls_clients", self.tls_clients)

    def _check_oidc(self) -> None:
        _together(self, "oidc_issuer", "oidc_audience")
        _together(self, "oidc_issuer", "oidc_scopes")
        for name in ("oidc_issuer", "oidc_jwks"):
            _check_address(name, getattr(self, name))
        parse_rules("oidc_scopes", self.oidc_scopes)


def _together(settings: AccessSettings, one: str, other: str) -> None:
    if bool(getattr(settings, one)) != bool(getattr(settings, other)):
        given, missing = (one, other) if getattr(settings, one) else (other, one)
        raise ValueError(f"{given}={getattr(settings, given)!r}: must come with {missing}")


def _check_address(name: str, value: str) -> None:
    """Refuse keys that anyone on the way could replace."""
    scheme, found, rest = value.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if found and scheme != "https" and not (scheme == "http" and is_loopback(host)):
        raise ValueError(f"{name}={value!r}: must be https, or http on loopback")
