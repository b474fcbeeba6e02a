"""The gate in front of every route: who may do what, decided before any of a body is read."""

import ipaddress
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import Scope

from libra.balancer.access_exposure import exposure_warnings, listens_locally
from libra.balancer.access_identity import Identity
from libra.balancer.access_principal import REASONS, Principal, RefusedError, forbidden
from libra.balancer.access_routes import Route, is_open
from libra.balancer.hosts import SAFE_METHODS, Hosts
from libra.balancer.problems import ProblemError
from libra.balancer.quotas import Buckets
from libra.balancer.settings import ServeSettings

logger = logging.getLogger(__name__)

# What one address may get wrong: more is answered without a look at what it sends.
_FAILURES_PER_S = 10.0
_FAILURE_BURST = 200.0
_QUOTA_BURST_S = 5.0
_TOKEN_IN_URL = re.compile(r"(?:^|[&;])(?:access_|id_)?token=|libra_[a-z0-9]{8}_", re.IGNORECASE)


class Gate:
    """What requests are let in by; ``refused`` counts the others by reason, of ``REASONS``.

    Raises ``ValueError`` for a file of tokens that cannot be used.
    """

    def __init__(
        self, settings: ServeSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        access = settings.access
        for warning in exposure_warnings(settings.listen, access):
            logger.warning("%s", warning)
        self.guarded = access.guarded
        self.identity = Identity(access)
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        open_to_names = access.guarded and not listens_locally(settings.listen)
        self._hosts = Hosts(settings.listen.host, access.trusted_hosts, open=open_to_names)
        self._settings = access
        self._failures = Buckets(_FAILURES_PER_S, _FAILURE_BURST)
        self._requests, self._bytes = (
            Buckets(per_s, _QUOTA_BURST_S * per_s)
            for per_s in (access.quota_requests_per_s, access.quota_bytes_per_s)
        )
        self._clock = clock

    async def admit(self, scope: Scope, route: Route) -> Principal | None:
        """Return who sent a request that may go on; raise ``RefusedError`` for another.

        Nobody is asked on a free route.
        """
        headers = request_headers(scope)
        self._check_address(scope, headers)
        method = scope["method"]
        if is_open(route, self._settings):
            if method not in SAFE_METHODS:
                self._check_origin(headers)
            return None
        principal, by_browser = await self.identify(scope, headers)
        if by_browser and method not in SAFE_METHODS:
            self._check_origin(headers)
        _check_scope(principal, route)
        if not route.name_is_possible:
            raise RefusedError(404, "name", "no job can have this name")
        self._check_quota(senders_of(principal, route), headers)
        return principal

    def check_failures(self, scope: Scope) -> None:
        """Raise ``RefusedError`` where a signature is not worth the time to check it."""
        wait_s = self._failures.wait_s(_address(scope), self._clock())
        if wait_s > 0:
            raise _too_many("throttled", "too many refused requests", wait_s)

    def answer(self, scope: Scope, refusal: RefusedError) -> ProblemError:
        """Count a refusal, and return what to answer."""
        if refusal.status in (401, 403):
            now_s, address = self._clock(), _address(scope)
            wait_s = self._failures.wait_s(address, now_s)
            self._failures.take(address, 1.0 if wait_s == 0 else 0.0, now_s)
            if wait_s > 0:
                refusal = _too_many("throttled", "too many refused requests", wait_s)
        self.refused[refusal.reason] += 1
        return ProblemError(refusal.status, str(refusal), headers=refusal.headers)

    async def identify(
        self, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> tuple[Principal, bool]:
        """Return who sent a request, and whether a browser may have said so by itself."""
        if b"." in headers.get(b"authorization", b""):
            self.check_failures(scope)
        return await self.identity.identify(headers, scope.get("state", {}))

    def _check_address(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        if _TOKEN_IN_URL.search(unquote_plus(scope["query_string"].decode("latin-1"))):
            detail = "an address must not hold a token: it ends in logs; send it in a header"
            raise RefusedError(400, "in_url", detail)
        server = scope.get("server")
        if server is None or server[1] is None:
            return  # a Unix socket, which no browser reaches
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._hosts.knows(host):
            detail = (
                "the host that was asked for is not known here: if it is right, start the balancer "
                "with it among trusted_hosts"
            )
            raise RefusedError(400, "host", detail)

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        if not self._hosts.same_origin(headers):
            raise RefusedError(403, "origin", "pages of other sites may change nothing here")

    def _check_quota(self, senders: list[str], headers: Mapping[bytes, bytes]) -> None:
        """Charge a request to all who are behind it, or refuse it at no charge."""
        now_s = self._clock()
        quotas = (self._requests, self._bytes)
        waits = [quota.wait_s(sender, now_s) for quota in quotas for sender in senders]
        if any(waits):
            raise _too_many("quota", "this is more than the quota of a token or job", max(waits))
        length = headers.get(b"content-length", b"")
        for sender in senders:
            self._requests.take(sender, 1.0, now_s)
            self._bytes.take(sender, float(length) if length.isdigit() else 0.0, now_s)

    def charge(self, senders: list[str], num_bytes: int) -> None:
        """Charge what a request sends without having said how much that would be."""
        for sender in senders:
            self._bytes.take(sender, num_bytes, self._clock())


def senders_of(principal: Principal, route: Route) -> list[str]:
    """Return whose quotas a request counts for: its token's, and of reports also the job's."""
    known = [] if principal.method == "none" else [principal.name]
    return [*known, f"job {route.job}"] if route.need == "report" else known


def request_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by name.

    One that comes twice is joined: of two tokens, hosts or origins neither must be picked, and
    joined they are none.
    """
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b"; " + value if name in headers else value
    return headers


def _check_scope(principal: Principal, route: Route) -> None:
    if route.need == "job":
        need: Any = "report" if principal.scope == "report" else "read"
    else:
        need = "read" if route.need == "metrics" else route.need
    lacks = principal.lacks(need, route.job)
    if lacks:
        raise forbidden(lacks, need)


def _too_many(reason: str, detail: str, wait_s: float) -> RefusedError:
    return RefusedError(429, reason, detail, {"Retry-After": str(1 + int(wait_s))})


def _address(scope: Scope) -> str:
    """Return who is to blame: an address, of IPv6 the network that one sender has for itself."""
    client = scope.get("client")
    host = client[0] if client else "local"
    if ":" in host:
        try:
            return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
        except ValueError:
            return host
    return host
