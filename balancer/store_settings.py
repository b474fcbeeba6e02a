"""Where the balancer keeps its memory, and how much of it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from libra.balancer.lease import MAX_LEAD_TIMEOUT_S
from libra.balancer.options import option


def default_store() -> str:
    """Return the store's place in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state) / "libra" / "balancer.sqlite")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """Where the balancer keeps its memory, and how much of it.

    Attributes:
        store: a path, or ``postgresql://...``.
    """

    store: str = option(factory=default_store, help="SQLite file, or postgresql://...")
    store_schema: str = option("libra", help="PostgreSQL schema that holds the tables")
    lead_timeout_s: float = option(
        5.0, help="seconds after which a silent balancer leads no more (PostgreSQL)"
    )
    flush_interval_s: float = option(
        2.0, help="seconds between writes of measurements; a crash loses no more than these"
    )
    keep_days: float = option(30.0, help="days that a finished job is kept")
    keep_jobs: int = option(10_000, help="finished jobs that are kept")
    keep_bytes: int = option(10 << 30, help="bytes that all jobs together may take on disk")

    def __post_init__(self) -> None:
        for name in ("flush_interval_s", "keep_days", "keep_jobs", "keep_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")
        if not 1 <= self.lead_timeout_s <= MAX_LEAD_TIMEOUT_S:
            raise ValueError(
                f"lead_timeout_s={self.lead_timeout_s}: must be in 1..{MAX_LEAD_TIMEOUT_S:g}"
            )
        if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.store_schema) is None:
            raise ValueError(
                f"store_schema={self.store_schema!r}: must be letters a-z, digits and "
                "underscores, begin with no digit and have at most 63 characters"
            )
