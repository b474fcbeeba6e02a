"""Who sent a request: by token, by the browser's session, or by the client's certificate."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libra.balancer.access_principal import ANYONE, Principal, unauthorized
from libra.balancer.access_rules import parse_rules
from libra.balancer.access_settings import AccessSettings
from libra.balancer.sessions import Sessions, cookie_number
from libra.balancer.tokens_file import WatchedTokens

if TYPE_CHECKING:
    from libra.balancer.oidc import Issuer
    from libra.balancer.oidc_keys import IssuerKeys

# Longer than any token; what is longer is not looked at.
_MAX_CREDENTIAL = 20_000
_ASK = "this needs an access token: send Authorization: Bearer TOKEN, or log in on the page"


class Identity:
    """Everything that tells who someone is; raise ``ValueError`` for files that cannot be used."""

    def __init__(self, settings: AccessSettings, clock: Callable[[], float] = time.time) -> None:
        self.sessions = Sessions(settings.session_s)
        self.tokens = WatchedTokens(Path(settings.tokens)) if settings.tokens else None
        self.issuer = _issuer(settings) if settings.oidc_issuer else None
        self._guarded = settings.guarded
        self._clients = parse_rules("tls_clients", settings.tls_clients)
        self._clock = clock

    @property
    def fault(self) -> str | None:
        """What keeps new tokens from being taken up; the log has why."""
        if self.tokens is not None and self.tokens.fault:
            return "the file of tokens has a fault: the last good ones count"
        if self.issuer is not None and self.issuer.keys.fault:
            return "the token issuer's keys cannot be read: the last ones count, if there are any"
        return None

    @property
    def _sources(self) -> "list[WatchedTokens | IssuerKeys]":
        issuer = self.issuer.keys if self.issuer is not None else None
        return [source for source in (self.tokens, issuer) if source is not None]

    def now_s(self) -> float:
        """Return Unix time."""
        return self._clock()

    def start(self) -> None:
        """Begin to follow files and keys as they change."""
        for source in self._sources:
            source.start()

    def close(self) -> None:
        for source in self._sources:
            source.close()

    async def identify(
        self, headers: Mapping[bytes, bytes], state: Mapping[str, Any]
    ) -> tuple[Principal, bool]:
        """Return who sent a request, and whether a browser may have said so by itself.

        Raises ``RefusedError`` when nothing shows who it is.
        """
        if not self._guarded:
            return ANYONE, True
        credential = headers.get(b"authorization")
        if credential is not None:
            return await self._by_header(credential), False
        number = cookie_number(headers.get(b"cookie", b"").decode("latin-1"))
        if number:
            principal = self.sessions.find(number, self._clock())
            if principal is not None and self.still_holds(principal):
                return principal, True
            self.sessions.close(number)
        client = self._by_certificate(state.get("certificate", ""))
        if client is not None:
            return client, True
        if number:
            raise unauthorized("expired", "the login is over: log in again")
        raise unauthorized("missing", _ASK)

    async def by_token(self, text: str) -> Principal:
        """Return whose token this is; raise ``RefusedError`` if it is nobody's, or no longer."""
        now_s = self._clock()
        if self.issuer is not None and text.count(".") == 2:
            return await self.issuer.identify(text, now_s)
        if self.tokens is None or len(text) > _MAX_CREDENTIAL:
            raise unauthorized("malformed", "this is no access token")
        return self.tokens.current.identify(text, now_s)

    def still_holds(self, principal: Principal) -> bool:
        """Tell whether what someone was identified by has been neither revoked nor outlived."""
        if principal.expires_s <= self._clock():
            return False
        if principal.method != "token":
            return True
        return self.tokens is not None and self.tokens.current.still_holds(principal)

    async def _by_header(self, credential: bytes) -> Principal:
        scheme, _, text = credential.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not text or not text.isascii():
            raise unauthorized("malformed", "the header Authorization must be Bearer TOKEN")
        return await self.by_token(text.strip(" "))

    def _by_certificate(self, name: str) -> Principal | None:
        for rule in self._clients if name else ():
            if rule.matches(name):
                job = rule.jobs_of({"name": name})
                return Principal(
                    name=f"certificate:{name}", scope=rule.scope, job=job, method="certificate"
                )
        return None


def _issuer(settings: AccessSettings) -> "Issuer":
    try:
        from libra.balancer.oidc import Issuer
    except ModuleNotFoundError as error:
        raise ValueError(
            f"oidc_issuer={settings.oidc_issuer!r}: needs PyJWT: pip install 'libra-balancer[oidc]'"
        ) from error
    return Issuer(settings)
