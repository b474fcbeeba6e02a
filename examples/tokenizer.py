"""A small lossless tokenizer: whole words where they are frequent, bytes where they are not.

Its vocabulary is counted on the corpus itself, so it needs no file and no download. It is made
for the demo: real text in, real lengths out.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_BYTES = 256
MAX_VOCABULARY_SIZE = 1 << 16

# Every character matches exactly one of these, so the pieces joined are the text again.
_PIECES = re.compile(r" ?[A-Za-z_]+|\n *| +|\S|\s")


class Tokenizer:
    """Map text to ids: 0..255 are bytes, the ids above are ``words`` in their order."""

    def __init__(self, words: Sequence[str]) -> None:
        if len(words) > MAX_VOCABULARY_SIZE - NUM_BYTES:
            raise ValueError(
                f"{len(words)} words: must be at most {MAX_VOCABULARY_SIZE - NUM_BYTES}, "
                "or ids do not fit 16 bits"
            )
        self.words = tuple(words)
        self._pieces = [bytes([byte]) for byte in range(NUM_BYTES)]
        self._pieces += [word.encode() for word in words]
        self._ids = _Ids((word, (NUM_BYTES + i,)) for i, word in enumerate(words))

    @classmethod
    def count(cls, texts: Iterable[str], vocabulary_size: int) -> Self:
        """Return the tokenizer of the most frequent pieces; ties go to the alphabet."""
        if not NUM_BYTES <= vocabulary_size <= MAX_VOCABULARY_SIZE:
            raise ValueError(
                f"vocabulary_size={vocabulary_size}: must be in {NUM_BYTES}..{MAX_VOCABULARY_SIZE}"
            )
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_PIECES.findall(text))
        # A single byte has an id already.
        words = [word for word in counts if len(word.encode()) > 1]
        words.sort(key=lambda word: (-counts[word], word))
        return cls(words[: vocabulary_size - NUM_BYTES])

    @property
    def vocabulary_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> NDArray[np.uint16]:
        """Return the ids of a text, [n]."""
        pieces = map(self._ids.__getitem__, _PIECES.findall(text))
        return np.array(array("H", chain.from_iterable(pieces)), dtype=np.uint16)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids; a cut inside a character shows as U+FFFD."""
        return b"".join(self._pieces[i] for i in np.asarray(ids)).decode(errors="replace")


class _Ids(dict[str, tuple[int, ...]]):
    """Ids of a piece; one that has no id of its own is its bytes."""

    def __missing__(self, piece: str) -> tuple[int, ...]:
        ids = self[piece] = tuple(piece.encode())
        return ids
