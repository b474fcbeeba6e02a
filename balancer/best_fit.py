"""Best-fit decreasing over distinct lengths: all pieces of one length are decided at once.

Best fit puts a piece where the least room is left over. Pieces of one length are alike, and so are
sequences with equal room, so it is enough to count them: a *move* puts ``each`` pieces into every
one of ``sequences`` sequences with room ``source``, which leaves them room ``target``. Which
sequences these are follows afterwards, for all moves at once.

Shapes: L distinct lengths, K moves, E entries (one sequence in one move), S pieces, N sequences.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from libra.balancer.packed import Int64, spans


@dataclass(frozen=True, kw_only=True, slots=True)
class Moves:
    """What best fit does, in turn, as [K] arrays.

    Attributes:
        source: room of the sequences before, tokens; ``tokens`` of a sequence where they are new.
        target: their room after it, tokens.
        sequences: how many of them.
        each: pieces that every one of them receives.
    """

    source: Int64
    target: Int64
    sequences: Int64
    each: Int64

    def __len__(self) -> int:
        return len(self.source)


def best_fit(lengths: Int64, counts: Int64, tokens: int) -> Int64:
    """Return the sequence of every piece, [S], as best-fit decreasing would choose it.

    Args:
        lengths: [L] distinct lengths of pieces, falling, at most ``tokens``.
        counts: [L] pieces of each length; the answer has them in this order.
        tokens: tokens of a sequence.
    """
    moves = count_moves(lengths, counts, tokens)
    entered = _follow(moves, tokens)
    return np.repeat(entered, np.repeat(moves.each, moves.sequences))


def count_moves(lengths: Int64, counts: Int64, tokens: int) -> Moves:
    """Decide how many sequences of which room receive how many pieces of each length.

    A sequence that received a piece is the tightest one for the next piece of that length, so it
    takes pieces until none fits, and only then is the turn of the next one.
    """
    rooms: list[int] = []  # with a sequence, sorted; none are full
    held: dict[int, int] = {}
    moves: list[tuple[int, int, int, int]] = []
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            at = bisect_left(rooms, length)
            source = rooms[at] if at < len(rooms) else tokens
            each = min(source // length, left)
            sequences = left // each
            if source != tokens:
                sequences = min(sequences, held[source])
                held[source] -= sequences
                if not held[source]:
                    del rooms[at], held[source]
            target = source - each * length
            if target:
                if target not in held:
                    insort(rooms, target)
                held[target] = held.get(target, 0) + sequences
            moves.append((source, target, sequences, each))
            left -= sequences * each
    return Moves(**dict(zip(Moves.__slots__, np.array(moves).reshape(-1, 4).T, strict=True)))


def _follow(moves: Moves, tokens: int) -> Int64:
    """Return the sequence behind every entry of every move, [E].

    Sequences of one room wait in a queue, first come, first served. So the j-th that leaves a queue
    is the j-th that came, and an entry's sequence is that of the entry by which it came.
    """
    before, entries = _starts(moves.sequences), int(moves.sequences.sum())
    came = np.argsort(moves.target, kind="stable")
    arrivals, _ = spans(before[came], moves.sequences[came])
    queues = _starts(moves.sequences[came])

    kept = np.flatnonzero(moves.source < tokens)
    left = kept[np.argsort(moves.source[kept], kind="stable")]
    source, sequences = moves.source[left], moves.sequences[left]
    starts = _starts(sequences)
    within = starts - starts[np.searchsorted(source, source)]
    first = queues[np.searchsorted(moves.target[came], source)] + within

    origin = np.arange(entries)
    leaving, _ = spans(before[left], sequences)
    origin[leaving] = arrivals[spans(first, sequences)[0]]
    opened = np.repeat(moves.source == tokens, moves.sequences)
    return (np.cumsum(opened) - 1)[_roots(origin)]


def _roots(origin: Int64) -> Int64:
    """Return where each chain of origins ends, by halving its length again and again."""
    while True:
        further = origin[origin]
        if np.array_equal(further, origin):
            return origin
        origin = further


def _starts(counts: Int64) -> Int64:
    """Return how many come before each of a row of groups."""
    return np.cumsum(counts) - counts
