"""Judge what all ranks were given against what their steps should have drawn; pure.

Shapes: n token ranges of documents, one a row: (step, document, begin, end).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from libra.balancer.packing import Segments

Int64 = NDArray[np.int64]
_SHOWN = 5


class Drawn(Protocol):
    """What steps and epochs should draw."""

    @property
    def lengths(self) -> NDArray[Any]: ...
    @property
    def own_order(self) -> bool: ...
    def draw(self, step: int, /) -> tuple[Segments, Int64]: ...
    def epoch_of(self, step: int, /) -> int: ...
    def first_step(self, epoch: int, /) -> int: ...
    def dropped(self, epoch: int, /) -> int: ...
    def left_out(self, epoch: int, /) -> Segments: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditRecord:
    """What one rank was given.

    Attributes:
        dp_rank, cp_rank: its coordinates.
        first_step: the first step that it recorded from its beginning.
        end_step: one past the last step that it recorded to its end.
        step, micro_batch, document, begin, end: [n] unsigned integers.
    """

    dp_rank: int
    cp_rank: int
    first_step: int
    end_step: int
    step: NDArray[Any]
    micro_batch: NDArray[Any]
    document: NDArray[Any]
    begin: NDArray[Any]
    end: NDArray[Any]

    @property
    def rows(self) -> Int64:
        """[n, 4] step, document, begin and end."""
        columns = (self.step, self.document, self.begin, self.end)
        return np.stack([column.astype(np.int64) for column in columns], axis=1)


class Finding(NamedTuple):
    """A token range of a document that a step got too rarely or too often."""

    step: int
    document: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"document {self.document}[{self.begin}:{self.end}] in step {self.step}"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """What an audit came to.

    Attributes:
        steps: that were judged; ``documents``, ``tokens``: distinct ones, and all, given in them.
        lost: drawn by a step and given to no rank.
        doubled: given more often than drawn, or again in another step.
        strange: given and drawn by no step that was judged.
        epochs: that were judged whole.
        left_out: sequences of these that fill no step.
        uncovered: documents of these that packing did not put anywhere exactly once.
    """

    steps: int
    documents: int
    tokens: int
    lost: tuple[Finding, ...]
    doubled: tuple[Finding, ...]
    strange: tuple[Finding, ...]
    epochs: tuple[int, ...] = ()
    left_out: int = 0
    uncovered: tuple[int, ...] = ()

    @property
    def right(self) -> bool:
        return not (self.lost or self.doubled or self.strange or self.uncovered)

    def raise_if_wrong(self) -> None:
        """Raise ``RuntimeError`` if a document was lost, doubled, or came from nowhere."""
        if not self.right:
            raise RuntimeError(str(self))

    def __str__(self) -> str:
        parts = [f"{self.steps} steps, {self.documents} documents, {self.tokens} tokens"]
        for name in ("lost", "doubled", "strange"):
            found: tuple[Finding, ...] = getattr(self, name)
            shown = "; ".join(map(str, found[:_SHOWN])) + ("; ..." if len(found) > _SHOWN else "")
            parts.append(f"{name}: {len(found)} ({shown})" if found else f"{name}: none")
        if self.uncovered:
            shown = ", ".join(map(str, self.uncovered[:_SHOWN]))
            parts.append(f"not packed exactly once: {len(self.uncovered)} documents ({shown})")
        elif self.epochs:
            whole = f"epochs {', '.join(map(str, self.epochs))} whole"
            left = f" but for {self.left_out} sequences that fill no step" if self.left_out else ""
            parts.append(whole + left)
        return ", ".join(parts)


def merge(records: Sequence[AuditRecord], drawn: Drawn, *, until: int | None = None) -> AuditReport:
    """Return the report on the records of all ranks; those of a CP group hold the same.

    Args:
        records: one of each rank.
        drawn: what steps should draw.
        until: the first step not to judge.
    """
    counted = [record for record in records if record.cp_rank == 0]
    first = max((record.first_step for record in counted), default=0)
    end = max((record.end_step for record in counted), default=0)
    judged = range(first, end if until is None else min(end, until))
    given = np.concatenate([np.zeros((0, 4), np.int64), *(record.rows for record in counted)])
    given = given[(given[:, 0] >= judged.start) & (given[:, 0] < judged.stop)]
    wanted = np.concatenate([np.zeros((0, 4), np.int64), *(_rows(drawn, s) for s in judged)])
    lost, extra = _differences(given, wanted)
    known = _among(extra[:, 1:], wanted[:, 1:])
    epochs = _whole_epochs(drawn, judged)
    return AuditReport(
        steps=len(judged),
        documents=len(np.unique(given[:, 1])),
        tokens=int((given[:, 3] - given[:, 2]).sum()),
        lost=_findings(lost),
        doubled=_findings(extra[known]),
        strange=_findings(extra[~known]),
        epochs=epochs,
        left_out=sum(drawn.dropped(epoch) for epoch in epochs),
        uncovered=tuple(d for epoch in epochs for d in _uncovered(drawn, epoch, wanted)),
    )


def _rows(drawn: Drawn, step: int) -> Int64:
    segments, _ = drawn.draw(step)
    steps = np.full(len(segments), step, dtype=np.int64)
    return np.stack([steps, segments.document, segments.begin, segments.end], axis=1)


def _differences(given: Int64, wanted: Int64) -> tuple[Int64, Int64]:
    """Return the rows that are missing from a multiset of rows, and those that are too many."""
    rows = np.concatenate([given, wanted])
    signs = np.repeat([1, -1], [len(given), len(wanted)])
    order = np.lexsort(rows.T[::-1])
    rows, signs = rows[order], signs[order]
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)])
    excess = np.add.reduceat(signs, starts) if len(starts) else signs
    distinct = rows[starts]
    return (
        np.repeat(distinct, np.maximum(-excess, 0), axis=0),
        np.repeat(distinct, np.maximum(excess, 0), axis=0),
    )


def _among(rows: Int64, others: Int64) -> NDArray[np.bool_]:
    """Return for each row, [n], whether it is among others; few rows and many others."""
    if not len(rows):
        return np.zeros(0, dtype=bool)
    near = others[np.isin(others[:, 0], rows[:, 0])]
    known = set(map(tuple, near.tolist()))
    return np.array([tuple(row) in known for row in rows.tolist()], dtype=bool)


def _findings(rows: Int64) -> tuple[Finding, ...]:
    return tuple(Finding(*row) for row in rows.tolist())


def _whole_epochs(drawn: Drawn, judged: range) -> tuple[int, ...]:
    if not judged:
        return ()
    epochs = range(drawn.epoch_of(judged.start), drawn.epoch_of(judged[-1]) + 1)
    return tuple(
        epoch
        for epoch in epochs
        if drawn.first_step(epoch) >= judged.start and drawn.first_step(epoch + 1) <= judged.stop
    )


def _uncovered(drawn: Drawn, epoch: int, wanted: Int64) -> list[int]:
    """Return the documents whose ranges in an epoch do not follow on each other, end to end."""
    if drawn.own_order:
        return []
    steps = (wanted[:, 0] >= drawn.first_step(epoch)) & (wanted[:, 0] < drawn.first_step(epoch + 1))
    rest = drawn.left_out(epoch)
    ranges = np.concatenate(
        [wanted[steps, 1:], np.stack([rest.document, rest.begin, rest.end], axis=1)]
    )
    document, begin, end = ranges[np.lexsort(ranges.T[1::-1])].T
    first = np.append(True, document[1:] != document[:-1])[: len(document)]
    follows = np.where(first, begin == 0, begin == np.roll(end, 1))
    last = np.append(first[1:], True)[: len(document)]
    follows &= ~last | (end == np.asarray(drawn.lengths)[document])
    missing = np.setdiff1d(np.arange(len(drawn.lengths)), document)
    return sorted({*document[~follows].tolist(), *missing.tolist()})
