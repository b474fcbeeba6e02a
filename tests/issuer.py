"""An issuer of JSON web tokens: a real server on loopback with real keys."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.balancers import Reply, Request, ToldBalancer

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(kw_only=True)
class TestIssuer:
    """Signs with the keys that it has, publishes those that it ``shows``; ``down`` answers 500."""

    __test__ = False

    url: str = ""
    private: dict[str, Key] = field(default_factory=dict)
    shows: set[str] = field(default_factory=set)
    extra: list[dict[str, Any]] = field(default_factory=list)
    down: bool = False
    fetches: int = 0

    def add_key(self, kid: str, *, curve: bool = False, bits: int = 2048) -> None:
        self.private[kid] = (
            ec.generate_private_key(ec.SECP256R1())
            if curve
            else rsa.generate_private_key(public_exponent=65537, key_size=bits)
        )
        self.shows.add(kid)

    def token(self, kid: str = "rsa", **changes: Any) -> str:
        """Return a service account's token; ``changes`` replace claims, None takes one away."""
        now_s = time.time()
        claims = {
            "iss": self.url,
            "aud": ["libra"],
            "sub": "system:serviceaccount:team-a:trainer",
            "exp": now_s + 3600,
            "nbf": now_s - 60,
            "iat": now_s - 60,
        }
        claims = {k: v for k, v in (claims | changes).items() if v is not None}
        key = self.private[kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})

    def jwks(self) -> bytes:
        keys = [_public(self.private[kid]) | {"kid": kid} for kid in sorted(self.shows)]
        return json.dumps({"keys": keys + self.extra}).encode()

    def answer(self, request: Request) -> Reply:
        if self.down:
            return Reply(status=500)
        if request.path == "/.well-known/openid-configuration":
            found = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            return Reply(status=200, body=json.dumps(found).encode())
        self.fetches += 1
        return Reply(status=200, body=self.jwks())


def _public(key: Key) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        return RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"use": "sig"}
    return ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"use": "sig"}


@contextmanager
def running_issuer() -> Iterator[TestIssuer]:
    """Serve an issuer with a key of each kind, named ``rsa`` and ``ec``."""
    issuer = TestIssuer()
    issuer.add_key("rsa")
    issuer.add_key("ec", curve=True)
    with ToldBalancer(issuer.answer) as server:
        issuer.url = server.url
        yield issuer
