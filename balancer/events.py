"""What the balancer tells the world when something changed in a job."""

from typing import Any, Literal

import msgspec

# What is shown of a job: ready for JSON, with finite numbers only, None where unknown.
View = dict[str, Any]
EventKind = Literal["step", "model", "policy", "effect", "mode", "ranks"]


class Event(msgspec.Struct, kw_only=True):
    """One change, and what is shown of it."""

    kind: EventKind
    data: View
