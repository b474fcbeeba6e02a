"""Stream packing: documents one after the other, cut at the ends of sequences.

Shapes: D documents to pack, N sequences, n sequences asked for, S segments of these.
"""

import numpy as np

from libra.balancer.packed import Int64, Integers, PackingReport, Segments, spans

# Documents gathered at a time, so that an epoch never needs a second array of its size.
_CHUNK = 1 << 20


class Stream:
    """The sequences of one stream of documents; the last one may be short.

    What it keeps is 8 bytes a document beside the order itself: token ``edges[i]:edges[i + 1]`` of
    the stream is document ``order[i]``. Sequence j begins in document ``order[first[j]]``.
    """

    def __init__(self, lengths: Integers, order: Integers, tokens: int) -> None:
        """Lay the documents of ``order`` [D] side by side; their ``lengths`` are not kept."""
        self._order = order
        self._edges = np.zeros(len(order) + 1, dtype=np.int64)
        for at in range(0, len(order), _CHUNK):
            chunk = order[at : at + _CHUNK]
            self._edges[at + 1 : at + 1 + len(chunk)] = lengths[chunk]
        np.cumsum(self._edges, out=self._edges)

        total = int(self._edges[-1])
        begin = np.arange(0, total, tokens)
        first = self._edges.searchsorted(begin, side="right") - 1
        # One more, so that every sequence has one that follows.
        self._first = np.append(first, len(order)).astype(order.dtype)
        self.report = PackingReport(
            method="stream",
            tokens=tokens,
            documents=len(order),
            document_tokens=total,
            sequences=len(first),
            cut_documents=len(np.unique(first[self._edges[first] < begin])),
        )

    def take(self, sequences: Int64) -> tuple[Segments, Int64]:
        """Return the segments of n sequences, one after the other, and offsets [n + 1]."""
        held = np.flatnonzero(sequences >= 0)
        first, counts = np.zeros((2, len(sequences)), dtype=np.int64)
        first[held] = self._first[sequences[held]]
        begin = sequences[held] * self.report.tokens
        end = np.minimum(begin + self.report.tokens, self._edges[-1])
        following = self._first[sequences[held] + 1]
        # The document that the next sequence begins in, where it also lies in this one.
        shared = self._edges[following] < end
        counts[held] = following + shared - first[held]

        index, offsets = spans(first, counts)
        start = self._edges[index]
        segments = Segments(
            document=self._order[index].astype(np.int64),
            begin=np.zeros(len(index), dtype=np.int64),
            end=self._edges[index + 1] - start,
        )
        # Only the first and the last segment of a sequence can be cut.
        heads, tails = offsets[held], offsets[held + 1] - 1
        segments.begin[heads] = begin - start[heads]
        segments.end[tails] = end - start[tails]
        return segments, offsets
