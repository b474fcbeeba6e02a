"""Access tokens: what one looks like, and what is kept of it.

A token is ``libra_ID_SECRETCHECK``. The secret has 256 random bits, so its plain SHA-256 is as hard
to turn back as the secret is to guess: a slow hash protects words that people choose, and would
only make requests slow. The check tells a token that lost characters from one that is not known.
"""

import binascii
import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from libra.balancer.access_principal import Principal, unauthorized
from libra.balancer.access_rules import JOB_PATTERN, Scope

MAX_TOKENS = 10_000
_ID_CHARACTERS = string.ascii_lowercase + string.digits
_SECRET_CHARACTERS = string.ascii_letters + string.digits
# 62 ** 43 is just above 2 ** 256.
_SECRET_LENGTH = 43
_TOKEN = re.compile(r"libra_([a-z0-9]{8})_([A-Za-z0-9]{43})([0-9a-f]{8})")

Note = Annotated[str, msgspec.Meta(max_length=200)]


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of one token: a line of the file.

    ``sha256`` is of the whole token; ``job`` a job's name, or its beginning and a star.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]{8}\Z")]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    scope: Scope
    job: str = ""
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    note: Note = ""

    def __post_init__(self) -> None:
        if not JOB_PATTERN.fullmatch(self.job):
            raise ValueError(f"job={self.job!r}: must be a job's name, or its beginning and a *")
        if (self.scope == "report") != bool(self.job):
            raise ValueError(f"job={self.job!r}: must come with the scope report, and only with it")

    def expired(self, now_s: float) -> bool:
        return self.expires is not None and self.expires.timestamp() <= now_s

    @property
    def principal(self) -> Principal:
        expires = {} if self.expires is None else {"expires_s": self.expires.timestamp()}
        return Principal(
            name=f"token:{self.id}",
            scope=self.scope,
            job=self.job,
            method="token",
            proof=self.sha256,
            **expires,
        )


class TokenSet:
    """All tokens that a balancer knows; it never changes, another takes its place."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens = {token.id: token for token in tokens}
        self._digests = {
            token.id: (bytes.fromhex(token.sha256), token.principal)
            for token in self.tokens.values()
        }
        # What the digest of an unknown id is compared with, so that it takes as long.
        self._nothing = (secrets.token_bytes(32), None)

    def identify(self, text: str, now_s: float) -> Principal:
        """Return whose token this is; raise ``RefusedError`` if it is nobody's, or no longer."""
        found = _TOKEN.fullmatch(text)
        if found is None or _check(found[2]) != found[3]:
            raise unauthorized("malformed", "this is no access token, or a part of it is missing")
        digest, principal = self._digests.get(found[1], self._nothing)
        same = hmac.compare_digest(digest, hashlib.sha256(text.encode()).digest())
        if principal is None or not same:
            raise unauthorized("unknown", "this access token is not known, or no longer")
        if principal.expires_s <= now_s:
            raise unauthorized("expired", "this access token has expired")
        return principal

    def still_holds(self, principal: Principal) -> bool:
        """Tell whether the token that someone was identified by is still here."""
        token = self.tokens.get(principal.name.removeprefix("token:"))
        return token is not None and token.sha256 == principal.proof


def new_token(
    scope: Scope, *, job: str = "", expires: datetime | None = None, note: str = ""
) -> tuple[str, Token]:
    """Return a token's text, which is kept nowhere, and what is kept of it."""
    id_ = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(8))
    secret = "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(_SECRET_LENGTH))
    text = f"libra_{id_}_{secret}{_check(secret)}"
    kept = Token(
        id=id_,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        scope=scope,
        job=job,
        created=datetime.now(UTC).replace(microsecond=0),
        expires=expires,
        note=note,
    )
    return text, kept


def encode_tokens(tokens: Iterable[Token]) -> bytes:
    """Return the file's bytes: a line of JSON for each token."""
    return b"".join(msgspec.json.encode(token) + b"\n" for token in tokens)


def decode_tokens(body: bytes) -> TokenSet:
    """Return the tokens of a file; raise ``ValueError`` that names the first bad line."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(body.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token = msgspec.json.decode(line, type=Token)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"line {number}: {error}") from error
        if token.id in tokens:
            raise ValueError(f"line {number}: the id {token.id} is there twice")
        tokens[token.id] = token
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"{len(tokens)} tokens: must be at most {MAX_TOKENS}")
    return TokenSet(tokens.values())


def _check(secret: str) -> str:
    return f"{binascii.crc32(secret.encode()):08x}"
