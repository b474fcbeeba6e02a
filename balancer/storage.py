"""What a store must be able to do, and what is written to it.

A job is kept as its newest core, everything but its steps, and one row for each complete step.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from libra.balancer.histogram import Histogram

Result = TypeVar("Result")


class StoreError(Exception):
    """The store cannot be opened or written; the message is one sentence for people."""


class StoreFullError(StoreError):
    """Too many writes wait for the disk; try again later."""


class LostLeadError(StoreError):
    """Another balancer has taken over: nothing more may be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PutJob:
    """A job's core takes the place of the one before.

    Attributes:
        summary: what a list of jobs shows of it, JSON.
        finished: is it unloaded with this write?
    """

    job: str
    at_s: float
    core: bytes
    summary: bytes
    finished: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PutStep:
    """One complete step; it takes the place of the same step of the same attempt."""

    job: str
    attempt: int
    step: int
    at_s: float
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DropJob:
    """Forget a job and its steps."""

    job: str


Write = PutJob | PutStep | DropJob


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJob:
    """A job's core and its newest steps, in the order they were written."""

    job: str
    at_s: float
    core: bytes
    steps: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSummary:
    """What is known of a job without reading it."""

    job: str
    at_s: float
    finished: bool
    num_bytes: int
    summary: bytes


class Backend(Protocol):
    """One connection to a place that keeps jobs, used by one thread at a time.

    Every method raises ``StoreError``.

    Attributes:
        label: what people are told of it; no password.
    """

    label: str

    def try_lead(self) -> bool:
        """Become the one balancer that may write; False while another one is."""
        ...

    def load(self, job: str, *, last_steps: int) -> StoredJob | None: ...

    def summaries(self) -> list[StoredSummary]: ...

    def transact(self, writes: Sequence[Write]) -> None:
        """Write all or nothing; durable on return. Raises ``LostLeadError``, too."""
        ...

    def prune(self, *, before_s: float, max_bytes: int, keep: Collection[str]) -> list[str]:
        """Drop finished jobs written before a time, then the oldest steps beyond the bytes.

        Jobs in ``keep`` are not dropped, though their old steps may be. Returns the names dropped.
        """
        ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class StoreLike(Protocol):
    """A backend behind one writer thread, as the service uses it. Thread-safe."""

    label: str
    capacity: int
    commits: Histogram
    errors: int
    healthy: bool

    @property
    def waiting(self) -> int: ...

    @property
    def full(self) -> bool: ...

    @property
    def size_bytes(self) -> int: ...

    def submit(self, writes: Sequence[Write]) -> "Future[None]":
        """Queue writes that belong together; the future is done once they are durable."""
        ...

    def ask(self, question: Callable[[Backend], Result]) -> "Future[Result]":
        """Run a question on the writer thread, between transactions."""
        ...

    def close(self, timeout_s: float = 10.0) -> None: ...
