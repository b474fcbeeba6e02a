"""How much Prometheus is told."""

from dataclasses import dataclass

from libra.balancer.options import option

LEVELS = ("job", "pool", "rank")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsSettings:
    """How much Prometheus is told."""

    metrics_level: str = option("job", help="finest series", choices=LEVELS)
    metrics_max_series: int = option(50_000, help="series beyond are cut, and counted")
    metrics_deadline_s: float = option(5.0, help="longest time that a page of metrics may take")

    def __post_init__(self) -> None:
        if self.metrics_level not in LEVELS:
            raise ValueError(f"metrics_level={self.metrics_level!r}: must be one of {LEVELS}")
        for name in ("metrics_max_series", "metrics_deadline_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")
