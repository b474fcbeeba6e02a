"""Where the balancer listens, and how it stops."""

import ipaddress
import re
from dataclasses import dataclass

from libra.balancer.options import option

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# The balancer's own: with and without such a prefix a path could mean two things.
_OWN_PATHS = ("/api/", "/static/")
UDS_MODES = ("0600", "0660")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenSettings:
    """Where the balancer listens, and how it stops.

    Sockets that systemd hands over take the place of ``uds``, and ``uds`` that of the address.
    """

    host: str = option("127.0.0.1", help="address to listen on")
    port: int = option(8765, help="port to listen on; 0 takes a free one")
    uds: str = option("", help="Unix socket to listen on in place of an address")
    uds_mode: str = option(
        "0600", help="who may connect to it: the user, or the group too", choices=UDS_MODES
    )
    address_file: str = option(
        "", help="file that says where the balancer listens, once it is ready"
    )
    root_path: str = option(
        "", help="prefix under which a proxy serves the balancer, such as /libra"
    )
    forwarded_allow_ips: tuple[str, ...] = option(
        (), help="proxies whose X-Forwarded headers are believed: addresses, networks, or *"
    )
    drain_s: float = option(
        10.0, help="seconds to stop in: half for open requests, the rest to write"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port={self.port}: must be in 0..65535")
        if self.uds_mode not in UDS_MODES:
            raise ValueError(f"uds_mode={self.uds_mode!r}: must be one of {UDS_MODES}")
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ValueError(
                f"root_path={self.root_path!r}: must be like /libra, without a slash at the end"
            )
        if f"{self.root_path}/".startswith(_OWN_PATHS):
            raise ValueError(
                f"root_path={self.root_path!r}: must not begin with one of {_OWN_PATHS}"
            )
        for proxy in self.forwarded_allow_ips:
            if proxy != "*" and not _is_network(proxy):
                raise ValueError(
                    f"forwarded_allow_ips={proxy!r}: must be an address, a network or *"
                )
        if not 0 < self.drain_s <= 3600:
            raise ValueError(f"drain_s={self.drain_s}: must be in (0, 3600] seconds")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
