"""WLB-LLM's packing of documents into micro-batches of even work, from its paper's description.

Source: "WLB-LLM" (arXiv 2503.17924). A micro-batch may hold more tokens than the window, which
costs memory, and a long document waits until every micro-batch can have one of its kind, which
changes what a step trains on. The paper tunes thresholds and the most tokens for each job; the
ones here are ours. Its work also has a linear part; here work is attention's, as for the others.

Shapes: W micro-batches of a step.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.lengths import Int64


class Document(NamedTuple):
    """A document, told apart by the step that drew it and its number there."""

    length: int
    step: int
    number: int


@dataclass(frozen=True, kw_only=True)
class WlbSettings:
    """How documents are packed.

    Attributes:
        micro_batches: W.
        max_tokens: of a micro-batch; above the window it takes memory.
        thresholds: the shortest document of each outlier queue, rising; none is no queue.
    """

    micro_batches: int
    max_tokens: int
    thresholds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.micro_batches < 1 or self.max_tokens < 1:
            raise ValueError(
                f"micro_batches={self.micro_batches}, max_tokens={self.max_tokens}: "
                "must be at least 1"
            )
        if list(self.thresholds) != sorted(set(self.thresholds)) or 0 in self.thresholds:
            raise ValueError(f"thresholds={self.thresholds}: must rise from at least 1")


class WlbPacking:
    """Packs step after step; what does not fit, or waits in a queue, comes in a later one."""

    def __init__(self, settings: WlbSettings, cost: Callable[[Int64], Int64]) -> None:
        """Price documents by ``cost``, integer work of [S] lengths."""
        self.settings = settings
        self._cost = cost
        self._queues: list[deque[Document]] = [deque() for _ in settings.thresholds]
        self._left: list[Document] = []

    @property
    def waiting(self) -> list[Document]:
        """Documents that were drawn and have not been trained on."""
        return [*self._left, *(document for queue in self._queues for document in queue)]

    def pack(self, documents: Iterable[Document]) -> list[list[Document]]:
        """Return W micro-batches out of a step's documents and those that waited.

        Raises:
            ValueError: a document has more tokens than a micro-batch may.
        """
        ready, self._left = self._left, []
        for document in documents:
            if document.length > self.settings.max_tokens:
                raise ValueError(
                    f"length={document.length}: must be at most {self.settings.max_tokens}"
                )
            queue = self._queue(document.length)
            (ready if queue is None else queue).append(document)
        for queue in self._queues:
            if len(queue) >= self.settings.micro_batches:
                ready += [queue.popleft() for _ in range(self.settings.micro_batches)]
        return self._place(sorted(ready, key=lambda own: (-own.length, own.step, own.number)))

    def _queue(self, length: int) -> deque[Document] | None:
        """Return the queue of the highest threshold that a length reaches."""
        reached = sum(length >= threshold for threshold in self.settings.thresholds)
        return self._queues[reached - 1] if reached else None

    def _place(self, ready: list[Document]) -> list[list[Document]]:
        """Put each where work is least, else where tokens are fewest, else leave it."""
        count = self.settings.micro_batches
        batches: list[list[Document]] = [[] for _ in range(count)]
        work, tokens = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        costs = self._cost(np.array([own.length for own in ready], dtype=np.int64))
        for document, cost in zip(ready, costs.tolist(), strict=True):
            chosen = int(work.argmin())
            if tokens[chosen] + document.length > self.settings.max_tokens:
                chosen = int(tokens.argmin())
            if tokens[chosen] + document.length > self.settings.max_tokens:
                self._left.append(document)
                continue
            batches[chosen].append(document)
            work[chosen] += cost
            tokens[chosen] += document.length
        return batches
