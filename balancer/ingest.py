"""The one queue in which requests with reports wait to be folded in.

One task takes them in slices of a few milliseconds and lets everything else run in between: a
burst of reports delays nobody for longer. What does not fit is refused, so memory is bounded.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libra.balancer.batch import Batch, BatchOutcome
from libra.balancer.failpoints import failpoint
from libra.balancer.storage import StoreFullError

_SLICE_S = 0.005
# Batches of a job that are folded in together: many take little longer than one.
_TOGETHER = 32
_GATHER_S = 0.01
# What follows from reports waits for a moment without any, but for no longer than this.
_PATIENCE_S = 0.05


class QueueFullError(StoreFullError):
    """Too many reports wait to be taken in; try again later."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    batch: Batch
    num_bytes: int
    taken: "asyncio.Future[BatchOutcome]"


class IngestQueue:
    """Fold batches in by ``fold``, those of a job together and in order, the jobs in turn.

    Args:
        fold: takes batches of one job; returns what became of each, or why it was refused.
        conclude: does a piece of what follows from that; returns whether there is more of it.
        capacity: requests that may wait.
        max_bytes: of the bodies that may wait.

    Attributes:
        num_bytes: of the bodies that wait.
    """

    def __init__(
        self,
        fold: Callable[[Sequence[Batch]], Sequence[BatchOutcome | Exception]],
        conclude: Callable[[], bool] = lambda: False,
        *,
        capacity: int,
        max_bytes: int,
    ) -> None:
        self.capacity = capacity
        self.num_bytes = 0
        self._fold = fold
        self._conclude = conclude
        self._max_bytes = max_bytes
        self._length = 0
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._task: asyncio.Task[None] | None = None
        self._full_since_s: float | None = None
        self._last_s = -math.inf

    def __len__(self) -> int:
        return self._length

    @property
    def full_for_s(self) -> float:
        """Seconds since a request was first refused without the queue having run empty."""
        return 0.0 if self._full_since_s is None else time.monotonic() - self._full_since_s

    async def put(self, batch: Batch, num_bytes: int) -> BatchOutcome:
        """Return what became of a batch, once it is folded in.

        Raises ``QueueFullError``, and whatever ``fold`` says of it.
        """
        full = self._length >= self.capacity
        if full or (self._length and self.num_bytes + num_bytes > self._max_bytes):
            self._full_since_s = self._full_since_s or time.monotonic()
            what = f"{self._length} requests of {self.num_bytes} bytes"
            raise QueueFullError(f"{what} wait to be taken in already")
        waiting = _Waiting(batch, num_bytes, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(batch.job, deque()).append(waiting)
        self._length += 1
        self.num_bytes += num_bytes
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="libra-ingest")
        return await waiting.taken

    async def drain(self) -> None:
        """Return once all that waits is folded in, and what follows is concluded."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        # Who comes after a pause is served at once; a stream of reports is gathered a little.
        await asyncio.sleep(max(0.0, self._last_s + _GATHER_S - time.monotonic()))
        concluded_s, more = time.monotonic(), True
        while self._waiting or more:
            end_s = time.monotonic() + _SLICE_S
            while self._waiting and time.monotonic() < end_s:
                self._take(self._next())
            # Who has been taken in is answered before anything else goes on.
            await asyncio.sleep(0)
            if not self._waiting or time.monotonic() - concluded_s > _PATIENCE_S:
                more = self._conclude()
                concluded_s = time.monotonic()
        self._full_since_s = None
        self._last_s = time.monotonic()

    def _next(self) -> list[_Waiting]:
        """Return what waits longest of one job; the job's turn comes again after the others'."""
        job = next(iter(self._waiting))
        queue = self._waiting.pop(job)
        taken = [queue.popleft() for _ in range(min(len(queue), _TOGETHER))]
        if queue:
            self._waiting[job] = queue
        self._length -= len(taken)
        self.num_bytes -= sum(waiting.num_bytes for waiting in taken)
        # Who has hung up will send it again.
        return [waiting for waiting in taken if not waiting.taken.done()]

    def _take(self, taken: Sequence[_Waiting]) -> None:
        if not taken:
            return
        try:
            outcomes = self._fold([waiting.batch for waiting in taken])
            failpoint("before_ack")
        except Exception as error:
            outcomes = [error] * len(taken)
        for waiting, outcome in zip(taken, outcomes, strict=True):
            if isinstance(outcome, Exception):
                waiting.taken.set_exception(outcome)
            else:
                waiting.taken.set_result(outcome)
