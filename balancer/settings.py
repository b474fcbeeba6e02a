"""Settings of ``libra serve``: what jobs are held to, and all settings together."""

from dataclasses import dataclass, field
from typing import get_args

from libra.balancer.access_settings import AccessSettings
from libra.balancer.listen_settings import ListenSettings
from libra.balancer.log_settings import LogSettings
from libra.balancer.metrics_settings import MetricsSettings
from libra.balancer.options import option
from libra.balancer.state import JobSettings, Mode
from libra.balancer.store_settings import StoreSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSettings:
    """What the service takes and bounds.

    Attributes:
        job: how jobs are judged.
    """

    mode: Mode = option(
        "observe", help="mode of jobs seen for the first time", choices=get_args(Mode)
    )
    queue_size: int = option(4096, help="requests with reports that may wait to be taken in")
    queue_bytes: int = option(256 << 20, help="bytes of those requests' bodies")
    body_limit_bytes: int = option(4 << 20, help="largest body of a request")
    body_timeout_s: float = option(30.0, help="longest time that a body may take to arrive")
    poll_limit_s: float = option(60.0, help="longest wait that a policy's reader may ask for")
    policy_expires_s: float = option(
        0.0,
        help="seconds that agents may use a policy without hearing from the balancer; 0: for ever",
    )
    stream_limit: int = option(2000, help="event streams that may be open at once")
    heartbeat_s: float = option(15.0, help="seconds between signs of life in an event stream")
    stall_s: float = option(30.0, help="seconds that an event stream's reader may not read")
    max_jobs: int = option(1000, help="jobs that may be active at once")
    job: JobSettings = field(default_factory=JobSettings)

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode={self.mode!r}: must be one of {get_args(Mode)}")
        for name in (
            *("queue_size", "queue_bytes", "body_limit_bytes", "body_timeout_s"),
            *("heartbeat_s", "stall_s", "max_jobs"),
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")
        if not self.policy_expires_s >= 0:
            raise ValueError(f"policy_expires_s={self.policy_expires_s}: must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings:
    """All settings of ``libra serve``."""

    listen: ListenSettings = field(default_factory=ListenSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    logs: LogSettings = field(default_factory=LogSettings)
