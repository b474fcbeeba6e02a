"""JSON web tokens of an issuer that the operator trusts, such as a Kubernetes cluster's.

A service account is named ``NAMESPACE/NAME``, anyone else by the claim ``sub``. Which rule matches
that name says what its bearer may do.
"""

import asyncio
import contextlib
import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jwt

from libra.balancer.access_principal import Principal, RefusedError, unauthorized
from libra.balancer.access_rules import parse_rules
from libra.balancer.access_settings import AccessSettings
from libra.balancer.oidc_keys import ALGORITHMS, MIN_REFRESH_S, IssuerKeys

LOOKS_LIKE_ONE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_MAX_LENGTH = 16_384
_LEEWAY_S = 30.0
_WAIT_FOR_KEY_S = 3.0
# A signature takes ten times as long to check as all the rest of a request.
_MAX_KNOWN = 20_000
_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]{1,63}):([a-z0-9.-]{1,253})")
_REQUIRED = ["exp", "iss", "aud", "sub"]


class Issuer:
    """Whoever bears a token of the settings' issuer."""

    def __init__(self, settings: AccessSettings, min_refresh_s: float = MIN_REFRESH_S) -> None:
        self.keys = IssuerKeys(settings, min_refresh_s)
        self._settings = settings
        self._rules = parse_rules("oidc_scopes", settings.oidc_scopes)
        # Tokens that were checked, by digest, with the keys that they were checked by.
        self._known: OrderedDict[bytes, tuple[Principal, jwt.PyJWK]] = OrderedDict()

    async def identify(self, text: str, now_s: float) -> Principal:
        """Return whose token this is; raise ``RefusedError`` if it is nobody's, or no longer."""
        digest = hashlib.sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is not None and known[0].expires_s > now_s and self._has(known[1]):
            return known[0]
        key = await self._key(_header(text))
        principal = self._principal(self._claims(text, key))
        self._known[digest] = (principal, key)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return principal

    def _has(self, key: jwt.PyJWK) -> bool:
        current = self.keys.keys.get(key.key_id or "")
        # The object changes with every refresh; what it holds only when the issuer says so.
        return current is key or (current is not None and current._jwk_data == key._jwk_data)

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        kid, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in ALGORITHMS or not isinstance(kid, str):
            raise unauthorized(
                "malformed", f"the token must be signed by {' or '.join(ALGORITHMS)}"
            )
        if kid not in self.keys.keys:
            await self._wait_for_keys()
        if not self.keys.keys:
            detail = "the token issuer's keys are not known yet"
            raise RefusedError(503, "unavailable", detail, {"Retry-After": "5"})
        key = self.keys.keys.get(kid)
        if key is None or key.algorithm_name != algorithm:
            raise unauthorized("unknown", "the token is signed by no key of the issuer")
        return key

    async def _wait_for_keys(self) -> None:
        refreshed = self.keys.refresh_soon()
        if refreshed is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(refreshed), _WAIT_FOR_KEY_S)

    def _claims(self, text: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key=key,
                algorithms=list(ALGORITHMS),
                audience=self._settings.oidc_audience,
                issuer=self._settings.oidc_issuer,
                leeway=_LEEWAY_S,
                options={"require": _REQUIRED, "verify_iat": False},
            )
            return claims | {"exp": float(claims["exp"])}
        except jwt.ExpiredSignatureError as error:
            raise unauthorized("expired", "the token has expired") from error
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise unauthorized("unknown", "the token is not one of this issuer for us") from error

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = str(claims["sub"])
        account = _ACCOUNT.fullmatch(subject)
        fields = {"namespace": account[1], "name": account[2]} if account else {}
        name = f"{account[1]}/{account[2]}" if account else subject
        for rule in self._rules:
            if rule.matches(name):
                break
        else:
            raise unauthorized("unknown", "no rule gives the token's subject a scope")
        return Principal(
            name=f"oidc:{name}",
            scope=rule.scope,
            job=rule.jobs_of(fields),
            method="jwt",
            expires_s=claims["exp"] + _LEEWAY_S,
        )


def _header(text: str) -> Mapping[str, Any]:
    if len(text) > _MAX_LENGTH:
        raise unauthorized("malformed", f"the token has more than {_MAX_LENGTH} characters")
    try:
        return jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError) as error:
        raise unauthorized("malformed", "the token cannot be read") from error
