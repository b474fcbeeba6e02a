"""Through crashes, late policies and restarts: one policy a step, and no document lost or doubled.

A failure names its seed: ``try_seeds(range(seed, seed + 1))`` tells the same story again.
"""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from libra.agent.agreement import agree
from libra.attention.store import Store
from libra.balancer.policy import Policy
from tests.ranks import PRELOADED
from tests.schedule_processes import run_in_processes
from tests.schedules import CRASHES, draw
from tests.stores import WatchedStore, connect, serve
from tests.turns import try_seeds

FAULTS = (
    *(f"crash: {kind}" for kind in CRASHES),
    "policies that differ",
    "restart",
    "another size",
    "repeated step",
    "straggler served",
    "straggler refused",
)


def _try_in_parallel(count: int) -> Counter[str]:
    """Try the first seeds on two cores; return how many each kind of fault occurred in."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    # Parts small enough that neither core waits long for the other.
    parts = [range(first, min(first + 50, count)) for first in range(0, count, 50)]
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        results = pool.map(try_seeds, parts, chunksize=1)
    assert [problem for problems, _ in results for problem in problems] == []
    return sum((fired for _, fired in results), Counter())


@pytest.mark.timeout(600)
def test_500_jobs_keep_every_promise() -> None:
    """One policy a step and attempt, each step what plain Ulysses has, restarts where saved.

    Over a job's whole life, and each kind of fault in many of the jobs.
    """
    fired = _try_in_parallel(480)

    assert {kind: fired[kind] for kind in FAULTS if fired[kind] < 30} == {}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_5000_jobs_keep_every_promise() -> None:
    """The same, ten times as many."""
    fired = _try_in_parallel(5000)

    assert {kind: fired[kind] for kind in FAULTS if fired[kind] < 300} == {}


@pytest.mark.dist
@pytest.mark.fault
def test_jobs_of_real_processes_keep_every_promise(tmp_path: Path) -> None:
    """The same of 20 jobs whose ranks are processes, which are killed."""
    server = serve()
    client = connect(server.port)

    def run(seed: int) -> Any:
        return run_in_processes(draw(seed), client, tmp_path)

    with ThreadPoolExecutor(2) as pool:
        lives = list(pool.map(run, range(480, 500)))

    assert [(life.schedule.seed, life.problems()) for life in lives if life.problems()] == []
    fired = sum(
        (Counter(kind for kind, n in life.faults().items() if n) for life in lives), Counter()
    )
    assert fired["restart"] == 20
    assert {kind for kind in FAULTS[: len(CRASHES) + 3] if not fired[kind]} == set()


class _Overwriting(WatchedStore):
    """A store whose compare-and-set does not compare."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        self.set(key, desired)
        return desired.encode()


class _Hoarding(WatchedStore):
    """A store that deletes nothing."""

    def delete_key(self, key: str, /) -> bool:
        return False


def _own(store: Store, *, propose: Callable[[], Policy], **asked: Any) -> Policy:
    return propose()


def _mixed(store: Store, *, attempt: int, **asked: Any) -> Policy:
    return agree(store, attempt=0, **asked)


def _early(store: Store, *, kept_steps: int, **asked: Any) -> Policy:
    return agree(store, kept_steps=1, **asked)


def _in(kind: type[WatchedStore]) -> Callable[..., Policy]:
    return lambda store, **asked: agree(kind(store, lambda _: None), **asked)


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (_own, "two policies"),
        (_in(_Overwriting), "two policies"),
        (_mixed, "another attempt"),
        (_early, "replaced or more than 1"),
        (_in(_Hoarding), "left in the store"),
    ],
    ids=["own policy", "overwritten", "attempts mixed", "removed too early", "never removed"],
)
def test_a_broken_agreement_is_found(broken: Callable[..., Policy], found: str) -> None:
    """The schedules see what they are there to see."""
    for seed in range(20):
        problems, _ = try_seeds(range(seed, seed + 1), broken)
        if any(found in problem for problem in problems):
            return

    pytest.fail(f"in no schedule was there: {found}")
