"""A user's own sampler of documents, drawn once an epoch: weighted mixtures, curricula, subsets.

Shapes: D documents drawn in an epoch; a document may come several times, or not at all.
"""

import hashlib
import operator
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_CHUNK = 1 << 20


class DocumentOrder:
    """The indices that a user's sampler yields in each epoch.

    A sampler with ``set_epoch`` is told the epoch. One without may draw from a generator that goes
    on, so its e-th iteration is epoch e: a resumed job iterates as often as the first one did.
    """

    def __init__(self, source: Iterable[int]) -> None:
        self._source = source
        self._draws = 0
        self._digests: dict[int, str] = {}

    def draw(self, epoch: int) -> Int64:
        """Return an epoch's documents in their order, [D].

        Raises:
            ValueError: it yields nothing, what is no index, or another order than before.
        """
        set_epoch = getattr(self._source, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        else:
            while self._draws < epoch:
                deque(self._source, maxlen=0)
                self._draws += 1
        self._draws += 1
        try:
            order = np.fromiter(map(operator.index, self._source), dtype=np.int64)
        except TypeError as error:
            raise ValueError(f"documents: must yield indices of documents: {error}") from error
        if not len(order):
            raise ValueError(f"documents: yields no document in epoch {epoch}; must yield some")
        digest = hashlib.blake2b(order.astype("<i8").tobytes(), digest_size=8).hexdigest()
        if self._digests.setdefault(epoch, digest) != digest:
            raise ValueError(
                f"documents: yields another order each time it draws epoch {epoch}; give it a "
                "set_epoch that decides the order"
            )
        return order

    def digest(self, epoch: int) -> str:
        """Return sixteen hex digits over the order of an epoch that was drawn."""
        return self._digests[epoch]


def lengths_digest(lengths: NDArray[np.integer[Any]]) -> str:
    """Return sixteen hex digits over lengths; the same ones may be kept in any integer type."""
    state = hashlib.blake2b(digest_size=8)
    for first in range(0, len(lengths), _CHUNK):
        state.update(lengths[first : first + _CHUNK].astype("<i8").tobytes())
    return state.hexdigest()
