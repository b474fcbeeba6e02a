"""What this rank's attention is doing, in words, for the peers that wait for it.

One for the process, as a rank is: its roll call answers from another thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

OUTSIDE = "is outside attention"
COMPUTING = "is computing"
WAITING = "waits in an exchange"

_MAX_NAMED = 32

_now = OUTSIDE
# The pool in which it does so.
_among: Sequence[int] = ()


def activity(ranks: Sequence[int]) -> str:
    """Return what the rank does now, for a pool of these ranks.

    A rank that waits in another of its pools is not where these ranks wait for it.
    """
    elsewhere = _now == WAITING and _among and _among != ranks
    return f"{WAITING} of another pool ({named(_among)})" if elsewhere else _now


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words, the first of them where they are many."""
    listed = ", ".join(map(str, ranks[:_MAX_NAMED])) + ", ..." * (len(ranks) > _MAX_NAMED)
    return f"rank{'s' * (len(ranks) > 1)} {listed}"


@contextmanager
def within(ranks: Sequence[int]) -> Iterator[None]:
    """Say of which pool the exchanges inside are."""
    global _among
    _among = ranks
    try:
        yield
    finally:
        _among = ()


@contextmanager
def doing(what: str, *, then: str) -> Iterator[None]:
    """Say that the rank does one thing inside, and another after, whatever happens."""
    note(what)
    try:
        yield
    finally:
        note(then)


@contextmanager
def refusing() -> Iterator[None]:
    """Remember a ``ValueError`` until the next call: peers may have gone on without this rank."""
    try:
        yield
    except ValueError as error:
        note(f"refused its input ({error})")
        raise


def note(what: str) -> None:
    """Say what the rank does from now on."""
    global _now
    _now = what
