"""What the balancer tells the world when something changed in a job."""

from typing import Any, Literal

import msgspec

EventKind = Literal["step", "model", "policy", "mode", "ranks"]


class Event(msgspec.Struct, kw_only=True):
    """One change; ``data`` is ready for JSON: finite numbers only, None where unknown."""

    kind: EventKind
    data: dict[str, Any]
