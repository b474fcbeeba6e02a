"""By which names this balancer may be asked, and from which pages.

A page of another site can make its own name lead to this machine, and a browser then sends its
scripts' requests here as if they were our own. Only the name that they ask for tells: an address
cannot be made to lead elsewhere, but an unknown name can.
"""

import ipaddress
from collections.abc import Iterable, Mapping

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def host_name(host: str) -> str:
    """Return the name in a Host header or an origin, without its port and in small letters."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


class Hosts:
    """Names that a balancer is known by; ``open`` takes every name, unless some are listed."""

    def __init__(self, bound: str, trusted: Iterable[str], *, open: bool) -> None:
        self._listed = frozenset(map(host_name, trusted))
        self._names = self._listed | {host_name(bound)}
        self._open = open and not self._listed

    def knows(self, host: str) -> bool:
        """Tell whether a request for this host may be meant for us."""
        name = host_name(host)
        if self._open or name in self._names or name == "localhost":
            return True
        return name.endswith(".localhost") or _is_address(name)

    def same_origin(self, headers: Mapping[bytes, bytes]) -> bool:
        """Tell whether a request comes from our own page, or from no page at all."""
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site in (b"same-origin", b"none")
        origin = headers.get(b"origin")
        if origin is None:
            return True
        asked = origin.decode("latin-1").partition("://")[2].lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        # A proxy may have put another name into Host.
        return bool(asked) and (asked == host or host_name(asked) in self._listed)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
