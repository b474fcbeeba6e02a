"""How the balancer logs."""

from dataclasses import dataclass

from libra.balancer.options import option

FORMATS = ("auto", "text", "json")
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """How the balancer logs."""

    log_format: str = option(
        "auto", help="lines for people, or JSON; auto is text on a terminal", choices=FORMATS
    )
    log_level: str = option("info", help="least level that is logged", choices=LEVELS)

    def __post_init__(self) -> None:
        if self.log_format not in FORMATS:
            raise ValueError(f"log_format={self.log_format!r}: must be one of {FORMATS}")
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level={self.log_level!r}: must be one of {LEVELS}")
