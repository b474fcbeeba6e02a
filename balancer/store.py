"""A backend behind one writer thread, with group commit: what waits together is written together.

A write is done when its transaction is durable, and never before, so whatever was acknowledged is
there after a kill -9.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from libra.balancer.histogram import Histogram
from libra.balancer.storage import (
    Backend,
    LostLeadError,
    Result,
    StoreError,
    StoreFullError,
    Write,
)

logger = logging.getLogger(__name__)

_MAX_GROUP = 256
_SIZE_EVERY_S = 5.0
_CLOSED = "the store is closed"


@dataclass(frozen=True, slots=True)
class _Question:
    ask: Callable[[Backend], Any]


_Item = tuple[Sequence[Write] | _Question, "Future[Any]"]


class Store:
    """Write to a backend and ask it, from one thread of its own. Thread-safe.

    Attributes:
        commits: transactions that were tried, and the seconds that they took.
        errors: how many of them failed.
        healthy: did the last one succeed?
        lost_lead: has another balancer taken over?
    """

    def __init__(self, backend: Backend, *, queue_size: int = 4096) -> None:
        self.backend = backend
        self.label = backend.label
        self.capacity = queue_size
        self.commits = Histogram()
        self.errors = 0
        self.healthy = True
        self.lost_lead = False
        self._size_bytes = backend.size_bytes()
        self._sized_s = time.monotonic()
        self._queue: queue.Queue[_Item | None] = queue.Queue(queue_size)
        self._closed = False
        # Held to put and to close, so that nothing is queued behind the end.
        self._lock = threading.Lock()
        self._writer = threading.Thread(target=self._run, name="libra-store", daemon=True)
        self._writer.start()

    @property
    def waiting(self) -> int:
        """Number of requests that the writer has not taken up yet."""
        return self._queue.qsize()

    @property
    def full(self) -> bool:
        return self.waiting >= self.capacity

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, as of a few seconds ago."""
        return self._size_bytes

    def submit(self, writes: Sequence[Write]) -> "Future[None]":
        """Queue writes that belong together; the future is done once they are durable.

        Without writes it tells whether the disk takes any. Raises ``StoreFullError``.
        """
        return self._put(tuple(writes))

    def ask(self, question: Callable[[Backend], Result]) -> "Future[Result]":
        """Run a question on the writer thread, between transactions. Raises ``StoreFullError``."""
        return self._put(_Question(question))

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is queued and close the backend; what is late fails with ``StoreError``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        self._writer.join(max(0.0, deadline - time.monotonic()))
        if self._writer.is_alive():
            logger.error("The store %s did not close within %g s.", self.label, timeout_s)
            self._fail_waiting()
            return
        try:
            self.backend.close()
        except StoreError as error:
            logger.error("%s.", error)

    def _put(self, work: Sequence[Write] | _Question) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise StoreError(_CLOSED)
            try:
                self._queue.put_nowait((work, future))
            except queue.Full:
                text = f"{self.capacity} writes wait for the disk already"
                raise StoreFullError(text) from None
        return future

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            group, going = [item], True
            with contextlib.suppress(queue.Empty):
                while going and len(group) < _MAX_GROUP:
                    more = self._queue.get_nowait()
                    going = more is not None
                    group += [more] if more is not None else []
            self._work(group)
            if not going:
                return

    def _work(self, group: list[_Item]) -> None:
        """Do a group in order: neighbouring writes are one transaction."""
        together: list[tuple[Sequence[Write], Future[Any]]] = []
        for work, future in group:
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(work, _Question):
                self._commit(together)
                together = []
                self._answer(work, future)
            else:
                together.append((work, future))
        self._commit(together)

    def _commit(self, together: list[tuple[Sequence[Write], "Future[Any]"]]) -> None:
        if not together:
            return
        with self.commits.time():
            failure = self._transact([write for writes, _ in together for write in writes])
        if time.monotonic() - self._sized_s > _SIZE_EVERY_S:
            self._weigh()
        for _, future in together:
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

    def _transact(self, writes: list[Write]) -> StoreError | None:
        try:
            self.backend.transact(writes)
        except Exception as error:
            if self.healthy or not isinstance(error, StoreError):
                # Once for a row of failures: a full disk may stay full for hours.
                logger.error("Cannot write the store: %s.", error, exc_info=_trace(error))
            self.errors += 1
            self.healthy = False
            self.lost_lead |= isinstance(error, LostLeadError)
            return _as_store_error(error)
        if not self.healthy:
            logger.warning("The store %s can be written again.", self.label)
        self.healthy = True
        return None

    def _answer(self, question: _Question, future: "Future[Any]") -> None:
        try:
            answer = question.ask(self.backend)
        except Exception as error:
            self.errors += 1
            self.lost_lead |= isinstance(error, LostLeadError)
            logger.error("Cannot ask the store: %s.", error, exc_info=_trace(error))
            future.set_exception(_as_store_error(error))
            return
        self._weigh()
        future.set_result(answer)

    def _weigh(self) -> None:
        self._sized_s = time.monotonic()
        with contextlib.suppress(StoreError, OSError):
            self._size_bytes = self.backend.size_bytes()

    def _fail_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None and item[1].set_running_or_notify_cancel():
                    item[1].set_exception(StoreError(_CLOSED))
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)


def _as_store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    return StoreError(f"unexpected {type(error).__name__} in the store: {error}")


def _trace(error: Exception) -> Exception | None:
    return None if isinstance(error, StoreError) else error
