"""Which launch of the job this is: one answer on all its ranks, from the job's own store.

Ranks cannot tell by themselves. torchrun counts restarts on each node apart, and not those that
another node asked for; other launchers give no count, or none that differs from the last time. So
the first rank to come names the launch for all by one compare-and-set, and nobody waits.

    libra/launch         the launch, as an entry [run, attempt]
    libra/launch/{rank}  the run that the rank took part in, and its process

A store is new at every launch, as a rule. Where it is not, a rank that finds a name under which
another process of its own rank ran knows that it is an earlier launch's, and gives the next.
"""

import functools
import os
import uuid

import msgspec

from libra.attention.store import Store

# Room for what makes it unique within the 128 characters of a report's run.
_MAX_RUN = 100


class Launch(msgspec.Struct, frozen=True, array_like=True):
    """One start of all ranks of a job.

    Attributes:
        run: what no other launch has.
        attempt: grows from launch to launch of one store.
    """

    run: str
    attempt: int


class _Seat(msgspec.Struct, frozen=True, array_like=True):
    """Which process of a rank took part in which run."""

    run: str
    process: str


def join_launch(store: Store, *, rank: int, run: str, attempt: int) -> Launch:
    """Return the launch that this process belongs to; may block for as long as the store does.

    Args:
        store: the job's own.
        rank: of this process in the job.
        run, attempt: as its environment tells; the first rank's are the launch's.
    """
    key = "libra/launch"
    seat_key = f"{key}/{rank}"
    found, seat = _read(store, key), _read(store, seat_key)
    launch = msgspec.json.decode(found, type=Launch) if found else None
    if launch is None or _is_over(launch, seat):
        attempt = attempt if launch is None else max(attempt, launch.attempt + 1)
        name = ".".join(filter(None, (run[:_MAX_RUN], uuid.uuid4().hex[:16])))
        wanted = msgspec.json.encode(Launch(name, attempt)).decode()
        launch = msgspec.json.decode(store.compare_set(key, found, wanted), type=Launch)
    own = _Seat(launch.run, _process(os.getpid()))
    store.set(seat_key, msgspec.json.encode(own).decode())
    return launch


def _is_over(launch: Launch, seat: str) -> bool:
    """Tell whether another process of this rank took part in the launch."""
    if not seat:
        return False
    known = msgspec.json.decode(seat, type=_Seat)
    return known.run == launch.run and known.process != _process(os.getpid())


@functools.cache
def _process(pid: int) -> str:
    """Name this process; numbers come again, in containers at once."""
    return f"{pid}-{uuid.uuid4().hex[:16]}"


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
