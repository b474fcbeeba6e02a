"""Who a request comes from, and why one is refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from libra.balancer.access_rules import Scope, job_matches

Method = Literal["none", "token", "jwt", "certificate"]

# Why requests are refused: each has a series from the start.
REASONS = (
    *("missing", "malformed", "unknown", "expired", "scope", "job"),
    *("origin", "host", "in_url", "name", "throttled", "quota", "unavailable"),
)
_MAX_AUTHOR = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """Whoever sent a request.

    Attributes:
        name: for the history and the log; who is named by a token has its kind before a colon.
        scope, job: what they may do; ``job`` is the pattern that the scope ``report`` is bound to.
        method: what showed who they are; with ``none`` nobody asked.
        proof: what must still hold while a connection stays open.
        expires_s: Unix time at which this ends.
    """

    name: str
    scope: Scope
    job: str = ""
    method: Method
    proof: str = ""
    expires_s: float = math.inf

    def author(self, claimed: str) -> str:
        """Return whose name a decision gets: a claim counts only where nobody is asked."""
        return claimed if self.method == "none" else self.name[:_MAX_AUTHOR]

    def lacks(self, need: Scope, job: str) -> Literal["scope", "job"] | None:
        """Return what keeps them from doing this, if anything."""
        if self.scope == "admin" or self.scope == need:
            bound = self.scope == "report" and not job_matches(self.job, job)
            return "job" if bound else None
        return "scope"


# Where no access control is on, everyone is this.
ANYONE = Principal(name="operator", scope="admin", method="none")


class RefusedError(Exception):
    """A request is refused with this status; ``reason`` is of ``REASONS``."""

    def __init__(
        self, status: int, reason: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.headers = dict(headers or {})


def unauthorized(reason: str, detail: str) -> RefusedError:
    """Return the refusal of a request that does not show who sent it."""
    error = "" if reason == "missing" else ', error="invalid_token"'
    return RefusedError(401, reason, detail, {"WWW-Authenticate": f'Bearer realm="libra"{error}'})


def forbidden(reason: Literal["scope", "job"], need: Scope) -> RefusedError:
    """Return the refusal of a request by someone who may not do this."""
    asks = f'Bearer realm="libra", error="insufficient_scope", scope="{need}"'
    detail = {
        "scope": f"this needs the scope {need}",
        "job": "this is not a job that your token may report for",
    }[reason]
    return RefusedError(403, reason, detail, {"WWW-Authenticate": asks})
