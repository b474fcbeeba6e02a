"""Settings of ``libra serve``: what it listens on, keeps and bounds."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from libra.balancer.state import JobSettings, Mode


def default_store() -> Path:
    """Return the store's place in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "libra" / "balancer.sqlite"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSettings:
    """One balancer's settings.

    Attributes:
        mode: mode of jobs that are seen for the first time.
        queue_size: reports that may wait for the disk; beyond, agents are told to try later.
        body_limit_bytes: largest report.
        body_timeout_s: longest time that a report's body may take to arrive.
        poll_limit_s: longest wait that a policy's reader may ask for.
        stream_limit: event streams that may be open at once.
        drain_s: time that open requests have to finish in when the balancer stops.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    store: Path = field(default_factory=default_store)
    mode: Mode = "observe"
    queue_size: int = 4096
    body_limit_bytes: int = 4 << 20
    body_timeout_s: float = 30.0
    poll_limit_s: float = 60.0
    stream_limit: int = 1000
    heartbeat_s: float = 15.0
    drain_s: int = 3
    job: JobSettings = field(default_factory=JobSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port={self.port}: must be in 0..65535")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode={self.mode!r}: must be one of {get_args(Mode)}")
        if not is_loopback(self.host):
            raise ValueError(
                f"host={self.host!r}: must be a loopback address, such as 127.0.0.1: "
                "beyond loopback the balancer would need access tokens, which it does not have yet"
            )
        for name in ("queue_size", "body_limit_bytes", "body_timeout_s", "heartbeat_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
