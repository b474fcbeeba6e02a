"""What optimizer steps draw: documents packed by seed and epoch, cut into steps of N sequences.

Nothing that is measured or decided enters here. Steps are counted over all epochs, which may
have different numbers of them: epoch e begins at the sum of the steps of those before it.

Shapes: N sequences of a step, with S documents in all.
"""

import hashlib
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.agent.documents import DocumentOrder, lengths_digest
from libra.agent.numbers import integer
from libra.balancer.packing import Method, PackedSequences, Segments, check_lengths, pack

Int64 = NDArray[np.int64]
Last = Literal["drop", "pad"]

# Loaders that read ahead are in the next epoch while the present one still trains.
_KEPT_EPOCHS = 2
_KEPT_STEPS = 8
# Costs are integers of 64 bits that hold tiles of up to as many tokens.
_MOST_TOKENS = 1 << 20


class Drawing:
    """The documents of every step, equal on all ranks; safe to use from several threads."""

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        tokens: int,
        global_batch: int,
        seed: int,
        packing: Method,
        last: Last,
        documents: Iterable[int] | None,
    ) -> None:
        """Check the settings; nothing is packed yet.

        Raises:
            ValueError: a length is not a positive integer, or a setting is not known.
        """
        if not 1 <= tokens <= _MOST_TOKENS:
            raise ValueError(f"tokens={tokens}: must be in 1..{_MOST_TOKENS}, or costs overflow")
        if last not in get_args(Last):
            raise ValueError(f"last={last!r}: must be 'drop' or 'pad'")
        if packing not in get_args(Method):
            raise ValueError(f"packing={packing!r}: must be 'best_fit' or 'stream'")
        self.lengths = check_lengths(lengths)
        self.global_batch = global_batch
        self._tokens, self._seed = tokens, integer("seed", seed)
        self._packing: Method = packing
        self._last: Last = last
        self._order = None if documents is None else DocumentOrder(documents)
        self._lock = threading.RLock()
        self._packed: dict[int, PackedSequences] = {}
        self._drawn: dict[int, tuple[Segments, Int64]] = {}
        self._counts: dict[int, int] = {}
        self._digests: dict[int, str] = {}
        self._first = {0: 0}

    @property
    def own_order(self) -> bool:
        """Whether a user's sampler draws the documents, and may repeat or omit some."""
        return self._order is not None

    @cached_property
    def settings(self) -> dict[str, int | str]:
        """What decides which documents a step draws; lengths are told by their digest."""
        return {
            "seed": self._seed,
            "tokens": self._tokens,
            "packing": self._packing,
            "last": self._last,
            "global_batch": self.global_batch,
            "documents": "each once" if self._order is None else "by an own sampler",
            "lengths": f"{len(self.lengths)} documents, {lengths_digest(self.lengths)}",
        }

    def packed(self, epoch: int) -> PackedSequences:
        """Return all sequences of an epoch."""
        with self._lock:
            packed = self._packed.pop(epoch) if epoch in self._packed else self._pack(epoch)
            self._packed[epoch] = packed
            while len(self._packed) > _KEPT_EPOCHS:
                del self._packed[next(iter(self._packed))]
            return packed

    def sequences(self, epoch: int) -> int:
        """Return how many sequences an epoch has."""
        with self._lock:
            if epoch not in self._counts:
                self._counts[epoch] = (
                    -(-self._document_tokens // self._tokens)
                    if self._packing == "stream" and self._order is None
                    else len(self.packed(epoch))
                )
            return self._counts[epoch]

    def steps(self, epoch: int) -> int:
        """Return the optimizer steps of an epoch, the padded one included.

        Raises:
            ValueError: the epoch's documents do not fill one step.
        """
        sequences = self.sequences(epoch)
        full, rest = divmod(sequences, self.global_batch)
        if self._last == "pad":
            return full + (rest > 0)
        if not full:
            raise ValueError(
                f"global_batch={self.global_batch}: the documents fill only {sequences} sequences "
                f"of {self._tokens} tokens; take a smaller one, or last='pad'"
            )
        return full

    def dropped(self, epoch: int) -> int:
        """Return how many sequences at the end of an epoch no step draws."""
        return max(0, self.sequences(epoch) - self.steps(epoch) * self.global_batch)

    def padded(self, epoch: int) -> int:
        """Return how many empty sequences fill the last step of an epoch."""
        return max(0, self.steps(epoch) * self.global_batch - self.sequences(epoch))

    def first_step(self, epoch: int) -> int:
        """Return the first step of an epoch, counted over all epochs."""
        with self._lock:
            known = epoch if epoch in self._first else max(e for e in self._first if e < epoch)
            while known < epoch:
                self._first[known + 1] = self._first[known] + self.steps(known)
                known += 1
            return self._first[epoch]

    def epoch_of(self, step: int) -> int:
        """Return the epoch that a step, counted over all epochs, belongs to."""
        step = integer("step", step)
        with self._lock:
            epoch = max(e for e, first in self._first.items() if first <= step)
            # The first step of an epoch is known to be its own before the epoch is packed.
            while step > self._first[epoch] and step >= self._first[epoch] + self.steps(epoch):
                epoch += 1
                self.first_step(epoch)
            return epoch

    def known_steps(self, epoch: int) -> int | None:
        """Return the steps of an epoch if that takes no packing."""
        with self._lock:
            if epoch in self._first and epoch + 1 in self._first:
                return self._first[epoch + 1] - self._first[epoch]
            return self.steps(epoch) if epoch in self._counts else None

    def known_digest(self, epoch: int) -> str | None:
        """Return the digest of an epoch if it has been asked for before."""
        return self._digests.get(epoch)

    def begin_epochs_at(self, firsts: Mapping[int, int]) -> None:
        """Know where epochs begin without packing those before them, from a saved state.

        What an earlier state said is forgotten.

        Raises:
            ValueError: one is counted to begin elsewhere; nothing is changed.
        """
        with self._lock:
            counted, epoch = {0: 0}, 0
            while epoch in self._counts:
                counted[epoch + 1] = counted[epoch] + self.steps(epoch)
                epoch += 1
            for epoch, step in firsts.items():
                if counted.setdefault(epoch, step) != step:
                    raise ValueError(
                        f"first_step={step}: epoch {epoch} begins at step {counted[epoch]}; "
                        "the state is another job's"
                    )
            self._first = counted

    def check_steps(self, epoch: int) -> None:
        """Raise ``ValueError`` where a saved state gave the epoch another number of steps."""
        told, counted = self.known_steps(epoch), self.steps(epoch)
        if told not in (None, counted):
            raise ValueError(
                f"epoch_steps={told}: epoch {epoch} has {counted}; the state is another job's"
            )

    def draw(self, step: int) -> tuple[Segments, Int64]:
        """Return a step's segments, [S], and where each of its sequences begins, [N + 1]."""
        with self._lock:
            if step not in self._drawn:
                self._drawn[step] = self._draw(step)
                if len(self._drawn) > _KEPT_STEPS:
                    del self._drawn[next(iter(self._drawn))]
            return self._drawn[step]

    def left_out(self, epoch: int) -> Segments:
        """Return what no step of an epoch draws since it does not fill one."""
        packed = self.packed(epoch)
        return packed.take(np.arange(len(packed) - self.dropped(epoch), len(packed)))[0]

    def digest(self, epoch: int) -> str:
        """Return sixteen hex digits over what an epoch draws, wherever ranks could differ.

        These are a user's order, all of it, and what packing makes of the seed: its generator is
        another package's, and one with another stream would show in the first step.
        """
        with self._lock:
            if epoch not in self._digests:
                first = self.first_step(epoch)
                state = hashlib.blake2b(str(self.sequences(epoch)).encode(), digest_size=8)
                for step in (first, first + self.steps(epoch) - 1):
                    segments, offsets = self.draw(step)
                    for part in (segments.document, segments.begin, segments.end, offsets):
                        state.update(np.asarray(part).astype("<i8").tobytes())
                if self._order is not None:
                    state.update(self._order.digest(epoch).encode())
                self._digests[epoch] = state.hexdigest()
            return self._digests[epoch]

    @cached_property
    def _document_tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def _pack(self, epoch: int) -> PackedSequences:
        packed = pack(
            self.lengths,
            tokens=self._tokens,
            seed=self._seed,
            epoch=epoch,
            method=self._packing,
            order=None if self._order is None else self._order.draw(epoch),
        )
        self._counts[epoch] = len(packed)
        return packed

    def _draw(self, step: int) -> tuple[Segments, Int64]:
        epoch = self.epoch_of(step)
        packed = self.packed(epoch)
        self.steps(epoch)  # raises where there are none
        first = (step - self.first_step(epoch)) * self.global_batch
        drawn = np.arange(first, first + self.global_batch)
        return packed.take(np.where(drawn < len(packed), drawn, -1))
