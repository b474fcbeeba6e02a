"""What this rank's attention is doing, in words, for the peers that wait for it.

One for the process, as a rank is: its roll call answers from another thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

OUTSIDE = "is outside attention"
COMPUTING = "is computing"
WAITING = "waits in an exchange"

_now = OUTSIDE


def activity() -> str:
    """Return what the rank does now."""
    return _now


@contextmanager
def doing(what: str, *, then: str) -> Iterator[None]:
    """Say that the rank does one thing inside, and another after, whatever happens."""
    _note(what)
    try:
        yield
    finally:
        _note(then)


@contextmanager
def refusing() -> Iterator[None]:
    """Remember a ``ValueError`` until the next call: peers may have gone on without this rank."""
    try:
        yield
    except ValueError as error:
        _note(f"refused its input ({error})")
        raise


def _note(what: str) -> None:
    global _now
    _now = what
