"""Run a drawn job on threads of which one runs at a time, so that each seed is one story.

Each call of the store and each collective hands the turn to a rank drawn by seed.
"""

import datetime
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistStoreError

from libra.agent.agreement import agree
from libra.attention.store import Store
from tests.schedule_rank import (
    TIMEOUT_S,
    Agree,
    CrashedError,
    Event,
    PeerLostError,
    Rank,
    State,
)
from tests.schedules import STEPS, Schedule, draw
from tests.stores import WatchedStore, connect, serve
from tests.verdict import Life, checkpoint, left_over


class Turns:
    """Hands one turn around among threads; who gets it next is drawn."""

    def __init__(self, seed: int, threads: int) -> None:
        self._random = Random(seed)
        self._go = {own: threading.Semaphore(0) for own in range(threads)}

    def run(self, bodies: list[Callable[[], None]]) -> None:
        """Run all to their ends."""
        threads = [
            threading.Thread(target=self._run, args=(own, body)) for own, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        self._next()
        for thread in threads:
            thread.join()

    def _run(self, own: int, body: Callable[[], None]) -> None:
        self._go[own].acquire()
        try:
            body()
        finally:
            del self._go[own]
            self._next()

    def _next(self) -> None:
        if self._go:
            self._go[self._random.choice(list(self._go))].release()

    def pause(self, own: int) -> None:
        """Let others run, or not; return at one's next turn."""
        # Half of the time, since a switch costs more than what runs between two.
        if self._random.random() < 0.5:
            return
        mine = self._go[own]
        self._next()
        assert mine.acquire(timeout=4 * TIMEOUT_S)


class TurnStore(WatchedStore):
    """A store that never waits while it has the turn."""

    def wait(self, keys: list[str], timeout: datetime.timedelta, /) -> None:
        for _ in range(200):
            if self.check(keys):
                return
        raise DistStoreError(f"no other thread set {keys}")

    def get(self, key: str, /) -> bytes:
        self.wait([key], datetime.timedelta())
        return self._store.get(key)


class Ground:
    """What the ranks of one attempt share."""

    def __init__(self, turns: Turns, ranks: int) -> None:
        self.turns, self.ranks = turns, ranks
        self.met = [0] * ranks
        self.gone: set[int] = set()


class ThreadWorld:
    """One rank's world; ``rank`` may be past the attempt's ranks, for one of another attempt."""

    def __init__(self, ground: Ground, rank: int, store: Store, events: list[Event]) -> None:
        self._ground, self._rank, self._events = ground, rank, events
        self.store = TurnStore(store, lambda _: ground.turns.pause(rank))

    def meet(self) -> None:
        ground = self._ground
        ground.met[self._rank] += 1
        while min(ground.met) < ground.met[self._rank]:
            if any(ground.met[gone] < ground.met[self._rank] for gone in ground.gone):
                raise PeerLostError
            ground.turns.pause(self._rank)

    def tell(self, event: Event) -> None:
        self._events.append(event)

    def crash(self) -> None:
        raise CrashedError

    def live(self, rank: Rank, attempt: int, state: State) -> None:
        try:
            rank.train(state)
        except (CrashedError, PeerLostError):
            pass
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            self.tell(Event(kind="failed", attempt=attempt, rank=self._rank, detail=detail))
        finally:
            self._ground.gone.add(self._rank)

    def straggle(self, rank: Rank, attempt: int, step: int) -> None:
        """Go on asking for steps, as a rank does that was not told of its job's end."""
        for further in range(step, min(step + 4, STEPS)):
            try:
                rank.decide(further)
                kind = "straggled"
            except (RuntimeError, TimeoutError):
                kind = "refused"
            self.tell(Event(kind=kind, attempt=attempt, rank=self._rank, step=further))


def try_seeds(seeds: range, agree: Agree = agree) -> tuple[list[str], Counter[str]]:
    """Return every broken promise of some seeds' jobs, and in how many each kind of fault fired."""
    server = serve()
    # A rank of another attempt may come on top of four.
    clients = [connect(server.port) for _ in range(5)]
    problems: list[str] = []
    fired: Counter[str] = Counter()
    for seed in seeds:
        life = run_on_threads(draw(seed), clients, agree)
        problems += [f"seed {seed}: {problem}" for problem in life.problems()]
        fired.update(kind for kind, count in life.faults().items() if count)
    return problems, fired


def run_on_threads(schedule: Schedule, clients: list[Any], agree: Agree = agree) -> Life:
    """Live a job through; ``clients`` are connections to one store, one for each thread."""
    stores = [PrefixStore(f"job{schedule.seed}", client) for client in clients]
    events: list[Event] = []
    step, state = checkpoint([])
    for index, attempt in enumerate(schedule.attempts):
        ranks = attempt.shape.dp
        events.append(Event(kind="began", attempt=attempt.number, rank=0, step=step, detail=ranks))
        asks = attempt.straggler and index > 0
        turns = Turns(schedule.seed + attempt.number, ranks + asks)
        ground = Ground(turns, ranks)
        worlds = [ThreadWorld(ground, own, stores[own], events) for own in range(ranks + asks)]
        lives: list[Callable[[], None]] = [
            partial(world.live, Rank(schedule, attempt, own, world, agree), attempt.number, state)
            for own, world in enumerate(worlds[:ranks])
        ]
        if asks:
            earlier = replace(schedule.attempts[index - 1], crashes=())
            late = Rank(schedule, earlier, 0, worlds[-1], agree)
            lives.append(partial(worlds[-1].straggle, late, earlier.number, step))
        turns.run(lives)
        step, state = checkpoint(events)
    events += left_over(stores[0])
    return Life(schedule, events)
