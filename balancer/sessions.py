"""Browsers that are logged in.

A session is known by a random number that is kept here, not by a signed value: so logging out and
revoking the token end it at once, and no key has to be kept. The price is that whoever is logged in
must log in again after the balancer restarts.
"""

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from libra.balancer.access_principal import Principal

COOKIE = "libra_session"
MAX_SESSIONS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A browser's login, until a Unix time."""

    principal: Principal
    until_s: float


class Sessions:
    """All sessions, each for at most ``lifetime_s``; the oldest gives way to a new one."""

    def __init__(self, lifetime_s: float, max_sessions: int = MAX_SESSIONS) -> None:
        self._lifetime_s = lifetime_s
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, principal: Principal, now_s: float) -> tuple[str, float]:
        """Return a new session's number and the seconds that it lasts."""
        number = secrets.token_urlsafe(32)
        until_s = min(now_s + self._lifetime_s, principal.expires_s)
        # By digest: how long a look-up takes tells nothing of the numbers that are there.
        self._sessions[_digest(number)] = Session(principal=principal, until_s=until_s)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)
        return number, until_s - now_s

    def find(self, number: str, now_s: float) -> Principal | None:
        session = self._sessions.get(_digest(number))
        if session is None:
            return None
        if session.until_s <= now_s:
            self.close(number)
            return None
        return session.principal

    def close(self, number: str) -> None:
        self._sessions.pop(_digest(number), None)


def _digest(number: str) -> bytes:
    return hashlib.sha256(number.encode()).digest()


def cookie_number(cookies: str) -> str:
    """Return the session's number in a Cookie header, ``""`` if there is none."""
    for part in cookies.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def cookie(number: str, *, max_age_s: float, path: str, secure: bool) -> str:
    """Return the Set-Cookie header that hands a session to a browser, or with none takes it back.

    No script can read it, and no other site's page can make the browser send it.
    """
    parts = [f"{COOKIE}={number}", f"Path={path or '/'}", f"Max-Age={max(0, int(max_age_s))}"]
    return "; ".join([*parts, "HttpOnly", "SameSite=Strict", *(["Secure"] if secure else [])])
