"""Best-fit packing: documents whole, sequences padded.

A document longer than a sequence is cut into full sequences and a rest.

Shapes: D documents to pack, F full sequences of one document, S pieces in N sequences, n
sequences asked for.
"""

import numpy as np

from libra.balancer.best_fit import best_fit
from libra.balancer.packed import Int64, Integers, PackingReport, Segments, spans


class Fitted:
    """The sequences of best-fit decreasing, the F full ones of cut documents first.

    What it keeps is one number a piece, its document: all but the pieces of full sequences are the
    last, or only, ones of theirs.
    """

    def __init__(self, lengths: Integers, order: Integers, tokens: int) -> None:
        """Pack the documents of ``order`` [D]; of equal lengths, earlier ones are placed first."""
        self._lengths = lengths
        self._tokens = tokens
        own = np.asarray(lengths[order])
        self._documents = len(own)
        self._document_tokens = int(own.sum(dtype=np.int64))
        self._cut_documents = int(np.count_nonzero(own > tokens))

        long = np.flatnonzero(own >= tokens)
        whole = own[long].astype(np.int64)
        fills = whole // tokens
        index, _ = spans(np.zeros(len(long), dtype=np.int64), fills)
        self._begin = index * tokens
        full = np.repeat(order[long], fills)
        own[long] = whole % tokens
        rest, sizes = _fit(own, tokens)
        self._document = np.concatenate((full, order[rest]))
        ends = np.concatenate((np.ones(len(full), dtype=np.int64), sizes)).cumsum()
        self._offsets = np.concatenate(([0], ends))

    @property
    def report(self) -> PackingReport:
        return PackingReport(
            method="best_fit",
            tokens=self._tokens,
            documents=self._documents,
            document_tokens=self._document_tokens,
            sequences=len(self._offsets) - 1,
            cut_documents=self._cut_documents,
        )

    def take(self, sequences: Int64) -> tuple[Segments, Int64]:
        """Return the segments of n sequences, one after the other, and offsets [n + 1]."""
        first = self._offsets[sequences]
        counts = np.where(sequences < 0, 0, self._offsets[sequences + 1] - first)
        index, offsets = spans(first, counts)
        document = self._document[index].astype(np.int64)
        end = self._lengths[document].astype(np.int64)
        begin = np.zeros(len(index), dtype=np.int64)
        long = np.flatnonzero(end > self._tokens)
        begin[long] = end[long] - end[long] % self._tokens
        full = np.flatnonzero(index < len(self._begin))
        begin[full] = self._begin[index[full]]
        end[full] = begin[full] + self._tokens
        return Segments(document=document, begin=begin, end=end), offsets


def _fit(lengths: Integers, tokens: int) -> tuple[Int64, Int64]:
    """Return the indices of all lengths above 0, sequence by sequence, and each one's count."""
    piece = np.flatnonzero(lengths)
    if not len(piece):
        return piece, piece
    # Falling, and stable: the same on every machine, whatever its fast sort does with equals.
    piece = piece[np.argsort(lengths.max() - lengths[piece], kind="stable")]
    falling = lengths[piece]
    first = np.flatnonzero(np.concatenate(([True], falling[1:] != falling[:-1])))
    counts = np.diff(np.append(first, len(piece)))
    sequence = best_fit(falling[first].astype(np.int64), counts, tokens)
    return piece[np.argsort(sequence, kind="stable")], np.bincount(sequence)
