"""What the balancer's process asks of its system and of Python: file handles, and short pauses."""

import gc
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

# Collections are small and many. Each goes through what is new, and large jobs put thousands of
# ranks anew in every step; what is old goes through them rarely.
_YOUNG, _MIDDLE, _OLD = 1_000, 20, 50


def raise_file_limit() -> int:
    """Allow as many open files, connections among them, as the system lets; return the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.warning("The limit of open files stays %d: %s.", soft, error)
            return soft
    return hard


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in the block, at most until ``ease_collections``: at the start there is
    next to none, and looking for it takes a fifth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ease_collections() -> None:
    """Leave all that is in memory now out of collections, and make these rare.

    It stays until the end, and looking at it again and again would hold up the event loop.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
