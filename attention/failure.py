"""Find out which rank of a pool failed, when an exchange did.

A rank whose peer has died sees a broken connection or a timeout, and no name. So a rank that
fails of its own accord says so in the job's store, and ranks whose exchange failed call a roll
of the pool there. A thread of each rank answers it, so that ranks which compute, or wait for
another, answer too: who does not is who failed. Where all answer, it is who does not wait, or
waits in another of its pools: where these are elastic, each calls its own roll.

What a failed exchange raises is up to its backend: with NCCL, torch ends the process itself
unless ``TORCH_NCCL_BLOCKING_WAIT`` is set.
"""

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from libra.attention.activity import (
    COMPUTING,
    OUTSIDE,
    WAITING,
    activity,
    doing,
    named,
    note,
    within,
)
from libra.attention.store import Store, apart

# How often each rank looks whether the roll is called; thousands share one store.
_LOOK_S = 1.0
# Longest wait for the others' answers: a busy store and process may take a few looks.
_ANSWER_S = 10.0
_POLL_S = 0.1
# What a store's own calls may take on top, before it counts as dead.
_STORE_S = 5.0


class PoolError(RuntimeError):
    """A rank of the pool failed inside attention; the message says which, as far as known."""


class ExchangeError(RuntimeError):
    """An exchange failed, which says nothing yet of who did."""


@contextmanager
def exchanging() -> Iterator[None]:
    """Mark what a collective raises as the failure of an exchange, not of this rank."""
    with doing(WAITING, then=COMPUTING):
        try:
            yield
        except RuntimeError as error:
            raise ExchangeError(str(error)) from error


class RollCall:
    """Names the rank of a pool that failed first, once: its exchanges cannot be used again."""

    def __init__(self, *, store: Store, name: str, ranks: Sequence[int], rank: int) -> None:
        """Begin to answer, until nobody holds this object.

        Args:
            store: the job's own store.
            name: of the pool, as no other pool of the job or of an earlier attempt has it.
            ranks: the pool's, as ranks of the whole job.
            rank: this one.
        """
        self._store, self._ranks, self._rank = apart(store), ranks, rank
        self._prefix = f"libra/attention/pool/{name}"
        ended = threading.Event()
        weakref.finalize(self, ended.set)
        if len(ranks) > 1:
            keys = self._called, self._here(rank)
            answering = threading.Thread(
                target=_answer, args=(self._store, *keys, ranks, ended), daemon=True
            )
            answering.start()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn whatever fails inside into an error that names the rank that failed first."""
        try:
            with within(self._ranks), doing(COMPUTING, then=OUTSIDE):
                yield
        except Exception as error:
            note(f"failed in the pool of {named(self._ranks)}")
            found = self.explain(error)
            # Another pool of this rank may wait for it, and should hear of the first failure.
            note(f"stopped ({found})")
            raise found from error

    def explain(self, error: Exception) -> PoolError:
        """Return the error to raise in place of ``error``; never raises itself.

        Blocks for little longer than the deadline: a store whose host has died is asked on a
        thread that can be left behind.
        """
        if isinstance(error, PoolError):
            return error
        verdicts: list[str] = []
        asker = threading.Thread(target=self._find, args=(error, verdicts), daemon=True)
        asker.start()
        asker.join(_ANSWER_S + _STORE_S)
        verdict = verdicts[0] if verdicts else _without_store("does not answer")
        seen = f" [{error}]" if isinstance(error, ExchangeError) else ""
        return PoolError(f"Attention failed on rank {self._rank}: {verdict}{seen}")

    def _find(self, error: Exception, verdicts: list[str]) -> None:
        try:
            if isinstance(error, ExchangeError):
                found = self._call()
            else:
                found = f"rank {self._rank} raised {type(error).__name__}: {error}"
            # Whoever is first to know tells the pool: others fail because of it.
            verdicts.append(self._store.compare_set(self._verdict, "", found).decode() or found)
        except Exception as broken:
            verdicts.append(_without_store(f"failed ({broken})"))

    def _call(self) -> str:
        """Call the roll and wait for all answers, or for a verdict."""
        self._store.set(self._here(self._rank), WAITING)
        self._store.set(self._called, "")
        deadline = time.monotonic() + _ANSWER_S
        answers = [self._here(rank) for rank in self._ranks]
        while True:
            if self._store.check([self._verdict]):
                return ""
            if self._store.check(answers):
                return self._late()
            if time.monotonic() >= deadline:
                missing = [own for own in self._ranks if not self._store.check([self._here(own)])]
                return f"no answer from {named(missing)}"
            time.sleep(_POLL_S)

    def _late(self) -> str:
        """Say who of the ranks, all of which answer, is not where the others wait for it."""
        told = {rank: self._store.get(self._here(rank)).decode() for rank in self._ranks}
        late = [f"rank {rank} {what}" for rank, what in told.items() if what != WAITING]
        if late:
            return f"while others wait, {', '.join(late)}"
        return "every rank answers and waits for another, so the network failed"

    @property
    def _verdict(self) -> str:
        return f"{self._prefix}/failed"

    @property
    def _called(self) -> str:
        return f"{self._prefix}/called"

    def _here(self, rank: int) -> str:
        return f"{self._prefix}/here/{rank}"


def _answer(
    store: Store, called: str, here: str, ranks: Sequence[int], ended: threading.Event
) -> None:
    """Wait for the roll to be called, and say what this rank is doing."""
    try:
        while not store.check([called]):
            if ended.wait(_LOOK_S):
                return
        # A rank that called the roll itself has answered.
        store.compare_set(here, "", activity(ranks))
    except Exception:
        # The store has gone, and the job with it; this rank will see that where it needs it.
        return


def _without_store(what: str) -> str:
    return f"the job's store {what}: the rank that hosts it may have died, rank 0 as a rule"
