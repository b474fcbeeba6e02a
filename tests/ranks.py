"""Run a function on several real ranks: own processes, gloo, a FileStore, a deadline.

Ranks are forked from one clean server that has imported torch already: importing it anew in
each of hundreds of ranks would take most of the tests' time.
"""

import contextlib
import datetime
import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

PRELOADED = [
    "torch",
    "torch.distributed.device_mesh",
    "libra.attention.pooled",
    "tests.ranks",
    "tests.schedule_rank",
    "tests.workers",
    "tests.attention_case",
]


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60.0
) -> list[Any]:
    """Run ``fn(rank, *args)`` in ``world_size`` processes that form the default gloo group.

    Args:
        fn: module-level function; what it returns must pickle.
        world_size: number of ranks.
        args: picklable arguments, the same for every rank.
        timeout_s: deadline for all ranks, start-up included, and of each collective.

    Returns:
        What each rank returned, by rank.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank raised; holds its traceback.
        TimeoutError: not all ranks ended in time; they are killed first.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        context = start_processes(
            _run_rank,
            args=(world_size, folder, timeout_s, fn, args),
            nprocs=world_size,
            join=False,
            start_method="forkserver",
        )
        assert context is not None
        try:
            _join(context, time.monotonic() + timeout_s, fn)
        finally:
            _kill(context)
        return [pickle.loads(_result(folder, rank).read_bytes()) for rank in range(world_size)]


def _join(context: Any, deadline: float, fn: Callable[..., Any]) -> None:
    """Wait for every rank; the first to raise ends the others and raises here."""
    while not context.join(timeout=max(0.0, min(1.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            running = [rank for rank, process in enumerate(context.processes) if process.is_alive()]
            raise TimeoutError(f"{fn.__qualname__}: ranks {running} did not end in time")


def _kill(context: Any) -> None:
    for process in context.processes:
        if process.is_alive():
            process.kill()
        process.join(30.0)


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"result.{rank}")


def _run_rank(
    rank: int,
    world_size: int,
    folder: str,
    timeout_s: float,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=Path(folder, "store").as_uri(),
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        result = fn(rank, *args)
        _result(folder, rank).write_bytes(pickle.dumps(result))
    except BaseException:
        # Said before this rank's connections close: a peer that then fails because of that must
        # not be the one whose words the parent sees.
        if _is_first_to_fail(folder):
            raise
    finally:
        if dist.is_initialized():
            # A peer that has already failed may have closed its end of the connection.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def _is_first_to_fail(folder: str) -> bool:
    try:
        Path(folder, "failed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
