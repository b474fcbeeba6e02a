"""Plan ahead: draw and plan the next cells on a thread while the present one trains."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from libra.agent.cell import Cell

T = TypeVar("T")

_END = object()


class Ahead(Generic[T]):
    """Iterate over what another iterable yields, a bounded number of items ahead.

    One iteration at a time. Cells are planned on the thread. It ends with the iteration, or on
    ``close``; an error of the source is raised where its item would have come.

    The source is then ahead of what was trained, and what is left in hand at ``close`` is gone: a
    job that stops or goes on there takes ``sampler.state_dict(step=...)`` of the next step to
    train, never the sampler's own position, and loads it before it iterates again.
    """

    def __init__(self, source: Iterable[T], *, depth: int = 2, timeout_s: float = 600.0) -> None:
        """Args:
        source: for example a ``PoolSampler``, whose policies are then agreed on that early.
        depth: items held ready.
        timeout_s: longest wait for an item.

        Raises:
            ValueError: a setting below its least value.
        """
        if depth < 1:
            raise ValueError(f"depth={depth}: must be at least 1")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s}: must be positive")
        self._source, self._depth, self._timeout_s = source, depth, timeout_s
        self._stop = threading.Event()

    def __iter__(self) -> Iterator[T]:
        """Yield the source's items.

        Raises:
            TimeoutError: the source yields nothing in time.
        """
        self.close()
        stop = self._stop = threading.Event()
        ready: queue.Queue[object] = queue.Queue(self._depth)
        thread = threading.Thread(
            target=_draw, args=(iter(self._source), ready, stop), name="libra-ahead", daemon=True
        )
        thread.start()
        try:
            while True:
                try:
                    item = ready.get(timeout=self._timeout_s)
                except queue.Empty:
                    raise TimeoutError(
                        f"No batch within timeout_s={self._timeout_s} of the one before."
                    ) from None
                if isinstance(item, _Failure):
                    raise item.error
                if item is _END:
                    return
                yield item  # type: ignore[misc]
        finally:
            stop.set()

    def close(self) -> None:
        """End the thread of an iteration that is not run to its end."""
        self._stop.set()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _draw(source: Iterator[T], ready: "queue.Queue[object]", stop: threading.Event) -> None:
    try:
        for item in source:
            if isinstance(item, Cell):
                # Its plan is made when it is first asked for.
                _ = item.layout
            if not _put(item, ready, stop):
                return
        _put(_END, ready, stop)
    except BaseException as error:
        _put(_Failure(error), ready, stop)


def _put(item: object, ready: "queue.Queue[object]", stop: threading.Event) -> bool:
    """Wait for room, unless the iteration has ended."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
