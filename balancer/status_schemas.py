"""What the API tells of the balancer itself; fields may be added, never taken away."""

from typing import Any, Literal

import msgspec


class Probe(msgspec.Struct):
    """A probe's answer; ``time`` is Unix time, ``warnings`` what an operator should know."""

    status: Literal["ok"]
    time: float
    warnings: list[str]


class QueueStatus(msgspec.Struct):
    """Requests with reports that wait to be taken in."""

    waiting: int
    capacity: int


class StoreStatus(msgspec.Struct):
    """The store, and the writes that wait for it."""

    label: str
    healthy: bool
    waiting: int
    capacity: int
    size_bytes: int
    errors: int


class BalancerStatus(msgspec.Struct):
    """How the balancer itself is; ``jobs`` by state, ``reports`` by what became of them."""

    version: str
    role: Literal["active", "standby"]
    ready: bool
    not_ready: str | None
    time: float
    uptime_seconds: float
    jobs: dict[str, int]
    queue: QueueStatus
    store: StoreStatus
    reports: dict[str, int]
    open_streams: int
    waiting_polls: int
    loop_lag_seconds: float


class StreamedEvent(msgspec.Struct):
    """One event, as a stream's readers get it in three lines."""

    id: int
    event: str
    data: dict[str, Any]


class EventPage(msgspec.Struct):
    """The next events after a number, and the one to ask with again; ``resync`` with none where
    it is too far back, or none of this stream's.
    """

    events: list[StreamedEvent]
    next: int
    resync: bool
