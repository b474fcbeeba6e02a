"""What clients saw of one job's policy, and whether a single register could have shown it.

Publishing writes the next version, everything else reads. A publication whose answer never came
may have happened or not. Times are of one monotonic clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# Of these only "fetch" must be fresh: an event or what a follower holds may be older than what
# others know already, but never older than what the same client saw before.
Kind = Literal["publish", "fetch", "event", "apply"]
ViolationKind = Literal["stale", "backwards", "early", "lost", "forked", "torn"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One thing that a client did, from ``began_s`` to ``ended_s``.

    Attributes:
        client: does one thing at a time.
        version: what was acknowledged or read; None where no usable answer came.
        checksum: as the answer states it.
        sound: is the checksum that of the body?
    """

    client: str
    kind: Kind
    began_s: float
    ended_s: float
    version: int | None = None
    checksum: str = ""
    sound: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """What no correct balancer can have shown, and to whom."""

    kind: ViolationKind
    operation: Operation
    detail: str


def violations(
    history: Iterable[Operation], kept: Mapping[int, str], *, oldest_kept: int = 0
) -> list[Violation]:
    """Return everything that is wrong with a history.

    Args:
        kept: checksum by version at the end, as the balancer lists them.
        oldest_kept: acknowledged versions below may have left that list.
    """
    known = [own for own in history if own.version is not None]
    return [
        *_torn(known),
        *_forked(known, kept),
        *_lost(known, kept, oldest_kept),
        *_early(known),
        *_stale(known),
        *_backwards(known),
    ]


def _torn(history: Sequence[Operation]) -> list[Violation]:
    """Find bodies that are not what their checksum says."""
    text = "the body has another checksum"
    return [Violation(kind="torn", operation=own, detail=text) for own in history if not own.sound]


def _forked(history: Sequence[Operation], kept: Mapping[int, str]) -> list[Violation]:
    """Find versions that two bodies bear."""
    first: dict[int, str] = dict(kept)
    return [
        Violation(kind="forked", operation=own, detail=f"elsewhere it is {first[_version(own)]}")
        for own in history
        if first.setdefault(_version(own), own.checksum) != own.checksum
    ]


def _lost(
    history: Sequence[Operation], kept: Mapping[int, str], oldest_kept: int
) -> list[Violation]:
    """Find versions that somebody was told of and that are no longer there."""
    return [
        Violation(kind="lost", operation=own, detail=f"only {sorted(kept)} are left")
        for own in history
        if own.version and own.version >= oldest_kept and own.version not in kept
    ]


def _early(history: Sequence[Operation]) -> list[Violation]:
    """Find reads of a version that ended before its publication began."""
    began = {_version(own): own.began_s for own in history if own.kind == "publish"}
    return [
        Violation(kind="early", operation=own, detail="its publication had not begun")
        for own in history
        if own.kind != "publish" and own.ended_s < began.get(_version(own), own.ended_s)
    ]


def _stale(history: Sequence[Operation]) -> list[Violation]:
    """Find fetches of an older version than was known to anybody before they began."""
    found = []
    by_end = sorted(history, key=lambda own: own.ended_s)
    floor, at = 0, 0
    for own in sorted(history, key=lambda own: own.began_s):
        while at < len(by_end) and by_end[at].ended_s < own.began_s:
            floor, at = max(floor, _version(by_end[at])), at + 1
        if own.kind in ("fetch", "publish") and _version(own) < floor:
            text = f"version {floor} had been seen or acknowledged"
            found.append(Violation(kind="stale", operation=own, detail=text))
    return found


def _backwards(history: Sequence[Operation]) -> list[Violation]:
    """Find clients that saw an older version after a newer one."""
    found = []
    newest: dict[str, int] = {}
    for own in sorted(history, key=lambda own: own.ended_s):
        before = newest.get(own.client, 0)
        if _version(own) < before:
            text = f"the client had seen version {before}"
            found.append(Violation(kind="backwards", operation=own, detail=text))
        newest[own.client] = max(before, _version(own))
    return found


def _version(operation: Operation) -> int:
    assert operation.version is not None
    return operation.version
