"""Pack documents into sequences of a fixed number of tokens, by seed and epoch only.

Packing decides what an optimizer step trains on, so nothing that Libra measures or decides may
touch it. A document longer than a sequence is cut into full sequences and a rest.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64 = NDArray[np.int64]
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
class PackedSequences:
    """All packed sequences of an epoch, in the order in which steps draw them.

    Attributes:
        segments: of all sequences, sequence after sequence.
        offsets: [N + 1]; sequence i holds segments ``offsets[i]:offsets[i + 1]``.
        tokens: of every sequence, padding included.
    """

    segments: Segments
    offsets: Int64
    tokens: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sequence(self, index: int) -> Segments:
        return self.segments.take(slice(int(self.offsets[index]), int(self.offsets[index + 1])))

    @property
    def padding_fraction(self) -> float:
        """Share of tokens that hold no document."""
        return 1.0 - int(self.segments.lengths.sum()) / max(1, len(self) * self.tokens)


def pack(
    lengths: ArrayLike, *, tokens: int, seed: int, epoch: int, method: Method = "best_fit"
) -> PackedSequences:
    """Pack one epoch: every token of every document exactly once.

    Args:
        lengths: document lengths in tokens, positive integers.
        tokens: tokens of a sequence.
        seed, epoch: with the lengths, all that the answer depends on.
        method: "best_fit" keeps documents whole and pads; "stream" cuts at sequence ends.

    Raises:
        ValueError: no documents, a length that is not a positive integer, an unknown method.
    """
    checked = check_lengths(lengths)
    if tokens < 1:
        raise ValueError(f"tokens={tokens}: must be at least 1")
    if method not in ("best_fit", "stream"):
        raise ValueError(f"packing={method!r}: must be 'best_fit' or 'stream'")
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(checked))
    cut = _cut_to_streams if method == "stream" else _cut_to_fit
    segments, sequence = cut(order, checked, tokens)
    return _group(segments, sequence, tokens, rng)


def check_lengths(lengths: ArrayLike) -> Int64:
    """Return lengths as int64; raise ``ValueError`` naming the first that is none."""
    values = np.asarray(lengths)
    if values.ndim != 1 or not len(values):
        raise ValueError("lengths: must be a non-empty list of document lengths")
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"lengths: {values.dtype} is not an integer type; tokens are counted")
    bad = np.flatnonzero(values < 1)
    if len(bad):
        raise ValueError(
            f"lengths[{bad[0]}]={values[bad[0]]}: must be at least 1; drop empty documents"
        )
    return np.asarray(values, dtype=np.int64)


def _cut_to_streams(order: Int64, lengths: Int64, tokens: int) -> tuple[Segments, Int64]:
    """Cut the concatenation of all documents at every multiple of ``tokens``."""
    ends = np.cumsum(lengths[order])
    borders = np.arange(tokens, int(ends[-1]), tokens)
    cuts = np.union1d(ends, borders)
    starts = np.concatenate(([0], cuts[:-1]))
    index = np.searchsorted(ends, starts, side="right")
    origin = ends[index] - lengths[order][index]
    segments = Segments(document=order[index], begin=starts - origin, end=cuts - origin)
    return segments, starts // tokens


def _cut_to_fit(order: Int64, lengths: Int64, tokens: int) -> tuple[Segments, Int64]:
    """Cut only documents longer than a sequence; put each piece where it fits best."""
    pieces = -(-lengths[order] // tokens)
    document = np.repeat(order, pieces)
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = (np.arange(len(document)) - first) * tokens
    end = np.minimum(begin + tokens, lengths[document])
    longest_first = np.argsort(begin - end, kind="stable")
    segments = Segments(document=document, begin=begin, end=end).take(longest_first)
    return segments, _best_fit(segments.lengths, tokens)


def _best_fit(lengths: Int64, tokens: int) -> Int64:
    """Return each piece's sequence: the fullest one that still has room, else a new one.

    Lengths come in falling order (best-fit decreasing). ``room`` holds (free tokens, sequence)
    of all sequences that are not full, sorted.
    """
    room: list[tuple[int, int]] = []
    sequence = np.empty(len(lengths), dtype=np.int64)
    opened = 0
    for piece, length in enumerate(lengths.tolist()):
        at = bisect_left(room, (length, -1))
        if at < len(room):
            free, chosen = room.pop(at)
        else:
            free, chosen, opened = tokens, opened, opened + 1
        sequence[piece] = chosen
        if free > length:
            insort(room, (free - length, chosen))
    return sequence


def _group(
    segments: Segments, sequence: Int64, tokens: int, rng: np.random.Generator
) -> PackedSequences:
    """Shuffle the sequences and lay their segments side by side."""
    count = int(sequence.max()) + 1
    place = rng.permutation(count)
    order = np.argsort(place[sequence], kind="stable")
    sizes = np.bincount(place[sequence], minlength=count)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return PackedSequences(segments=segments.take(order), offsets=offsets, tokens=tokens)
