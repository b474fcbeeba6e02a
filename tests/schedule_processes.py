"""Run a drawn job in processes, as torchrun does: where one dies the others are killed."""

import multiprocessing
import os
import signal
import time
from dataclasses import asdict
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec
from torch._C._distributed_c10d import PrefixStore

from libra.agent.agreement import agree
from libra.attention.store import Store
from tests.ranks import PRELOADED
from tests.schedule_rank import Event, Rank, State
from tests.schedules import Schedule, draw
from tests.stores import connect
from tests.verdict import Life, checkpoint, left_over

DEADLINE_S = 60.0


class ProcessWorld:
    """One rank's world: peers meet in the store, and what it tells is in a file at once."""

    def __init__(self, client: Any, prefix: str, ranks: int, told: Path) -> None:
        self.store: Store = PrefixStore(prefix, client)
        self._client, self._ranks = client, ranks
        self._meeting, self._meetings = f"meet/{told.parent.name}", 0
        self._told = os.open(told, os.O_CREAT | os.O_WRONLY)

    def meet(self) -> None:
        key = f"{self._meeting}/{self._meetings}"
        self._meetings += 1
        if self._client.add(f"{key}/ranks", 1) == self._ranks:
            self._client.set(f"{key}/all", "")
        # Whoever waits for a rank that has died is killed.
        self._client.wait([f"{key}/all"], timedelta(seconds=DEADLINE_S))

    def tell(self, event: Event) -> None:
        os.write(self._told, msgspec.json.encode(asdict(event)) + b"\n")

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        # Until it has come.
        signal.pause()


def _live(seed: int, attempt_index: int, own: int, state: State, port: int, told: Path) -> None:
    schedule = draw(seed)
    attempt = schedule.attempts[attempt_index]
    world = ProcessWorld(connect(port), f"job{seed}", attempt.shape.dp, told)
    try:
        Rank(schedule, attempt, own, world, agree).train(state)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        world.tell(Event(kind="failed", attempt=attempt.number, rank=own, detail=detail))
        raise


def run_in_processes(schedule: Schedule, client: Any, folder: Path) -> Life:
    """Live a job through; ``folder`` is empty, and ``client`` a connection to its store."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    events: list[Event] = []
    step, state = checkpoint([])
    for index, attempt in enumerate(schedule.attempts):
        ranks = attempt.shape.dp
        events.append(Event(kind="began", attempt=attempt.number, rank=0, step=step, detail=ranks))
        told = [folder / f"{schedule.seed}-{attempt.number}" / str(own) for own in range(ranks)]
        told[0].parent.mkdir()
        _run_attempt(
            [(schedule.seed, index, own, state, client.port, told[own]) for own in range(ranks)]
        )
        for path in told:
            lines = path.read_bytes().splitlines() if path.exists() else []
            events += [msgspec.json.decode(line, type=Event) for line in lines]
        step, state = checkpoint(events)
    events += left_over(PrefixStore(f"job{schedule.seed}", client))
    return Life(schedule, events)


def _run_attempt(arguments: list[tuple[Any, ...]]) -> None:
    """Run the ranks until all have ended or one has died."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_live, args=own) for own in arguments]
    deadline = time.monotonic() + DEADLINE_S
    for process in processes:
        process.start()
    try:
        running: dict[Any, Any] = {process.sentinel: process for process in processes}
        while running:
            ended = wait(list(running), max(0.0, deadline - time.monotonic()))
            assert ended, "the ranks did not end in time"
            for process in [running.pop(sentinel) for sentinel in ended]:
                process.join()
                if process.exitcode:
                    return
    finally:
        for process in processes:
            process.kill()
            process.join()
