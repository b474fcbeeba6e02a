"""Run many seeds over a few processes, and say which one to replay."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from tests.loop import Loop
from tests.loop_world import draw_world

Figures = TypeVar("Figures")

SEED_VARIABLE = "LIBRA_LOOP_SEED"
_WORKERS = 2
# Parts of some seconds each: the last one must not be waited for long.
_PARTS_PER_WORKER = 16


def chosen_seeds(seeds: Iterable[int]) -> list[int]:
    """Return these seeds, or the one that the environment asks to replay."""
    only = os.environ.get(SEED_VARIABLE)
    return [int(only)] if only else list(seeds)


def run_seeds(
    work: Callable[[int], Figures], seeds: Sequence[int], *, timeout_s: float
) -> list[Figures]:
    """Return what ``work``, a function of a module, makes of each seed, in their order.

    Raises the first seed's error, and ``TimeoutError`` when all together take too long.
    """
    if len(seeds) == 1:
        return [work(seeds[0])]
    # Spawned, not forked: the testing process has threads.
    context = multiprocessing.get_context("spawn")
    part = max(1, len(seeds) // (_WORKERS * _PARTS_PER_WORKER))
    pool = ProcessPoolExecutor(_WORKERS, mp_context=context)
    try:
        return list(pool.map(work, seeds, chunksize=part, timeout=timeout_s))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def run_random(seed: int) -> str:
    """Run a seed's random world; return the promise that it broke and how to replay it."""
    try:
        Loop(draw_world(seed)).run()
    except AssertionError as error:
        return f"{error}\n  replay: {SEED_VARIABLE}={seed} pytest tests/test_loop.py"
    return ""
