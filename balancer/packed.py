"""The packed sequences of an epoch, and what packing cost.

Shapes: D documents to pack, N packed sequences, n sequences asked for, S segments of these.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64 = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]
Method = Literal["best_fit", "stream"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Token ranges ``begin:end`` of documents, one after the other, as [S] arrays."""

    document: Int64
    begin: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.document)

    @property
    def lengths(self) -> Int64:
        return self.end - self.begin

    def take(self, index: Int64 | slice) -> "Segments":
        return Segments(document=self.document[index], begin=self.begin[index], end=self.end[index])


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingReport:
    """What packing an epoch came to.

    Attributes:
        method: that packed.
        tokens: of every sequence, padding included.
        documents: that were packed; one that is packed twice counts twice.
        document_tokens: of all documents.
        sequences: of the epoch.
        cut_documents: documents that lie in more than one sequence.
    """

    method: Method
    tokens: int
    documents: int
    document_tokens: int
    sequences: int
    cut_documents: int

    @property
    def padding_tokens(self) -> int:
        """Tokens that hold no document; linear layers cost as much for them as for others."""
        return self.sequences * self.tokens - self.document_tokens

    @property
    def padding_fraction(self) -> float:
        """Share of all tokens that is padding."""
        return self.padding_tokens / (self.sequences * self.tokens)

    @property
    def sequences_over_stream(self) -> int:
        """Sequences beyond those that cutting documents at sequence ends would need."""
        return self.sequences - -(-self.document_tokens // self.tokens)

    def __str__(self) -> str:
        extra = self.sequences_over_stream
        cost = f" (the linear layers' cost of {_counted(extra, 'sequence')})" if extra else ""
        return (
            f"{self.method}: {_counted(self.documents, 'document')} in "
            f"{_counted(self.sequences, 'sequence')} of {_counted(self.tokens, 'token')}, "
            f"{100 * self.padding_fraction:.1f} % padding{cost}, "
            f"{_counted(self.cut_documents, 'document')} cut"
        )


class Sequences(Protocol):
    """Sequences in the order in which a method fills them; their segments are made on demand."""

    @property
    def report(self) -> PackingReport: ...

    def take(self, sequences: Int64) -> tuple[Segments, Int64]:
        """Return the segments of n sequences, one after the other, and offsets [n + 1]."""
        ...


class PackedSequences:
    """All packed sequences of an epoch, in the order in which steps draw them.

    Attributes:
        tokens: of every sequence, padding included.
        report: what packing came to.
    """

    def __init__(self, sequences: Sequences, order: Integers) -> None:
        """Draw ``sequences`` in ``order``, an [N] permutation of them."""
        self._sequences = sequences
        self._order = order
        self.report = sequences.report
        self.tokens = self.report.tokens

    def __len__(self) -> int:
        return len(self._order)

    def sequence(self, index: int) -> Segments:
        """Return the segments of one sequence; index -1 is an empty sequence.

        Raises:
            IndexError: there is no such sequence.
        """
        return self.take([index])[0]

    def take(self, indices: ArrayLike) -> tuple[Segments, Int64]:
        """Return the segments of n sequences, one after the other.

        Args:
            indices: [n] sequences, in any order and repeated at will; -1 is an empty sequence.

        Returns:
            The segments, and offsets [n + 1]: sequence i of those asked for holds
            ``offsets[i]:offsets[i + 1]``.

        Raises:
            IndexError: there is no such sequence.
        """
        asked = np.asarray(indices, dtype=np.int64)
        wrong = (asked < -1) | (asked >= len(self))
        if wrong.any():
            first = int(asked[wrong][0])
            raise IndexError(f"sequence {first}: must be -1, an empty one, or below {len(self)}")
        sequences = self._order[asked].astype(np.int64)
        sequences[asked < 0] = -1
        return self._sequences.take(sequences)


def spans(first: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Return ``first[i], first[i] + 1, ...``, ``counts[i]`` of each, and their offsets [n + 1]."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    index = np.arange(offsets[-1], dtype=np.int64)
    index += np.repeat(first - offsets[:-1], counts)
    return index, offsets


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
