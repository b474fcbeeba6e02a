"""Ranks that stay: gloo processes that run one function after another, each with a deadline.

Starting ranks and their groups takes longer than most cases, so hundreds of cases share them. A
rank that failed or hung may hold half of an exchange: all are then killed, and the next call
starts new ones.
"""

import contextlib
import datetime
import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from tests.ranks import PRELOADED

_COLLECTIVE_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 30.0


class RankError(RuntimeError):
    """A rank raised or died; the message names it and holds its traceback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    process: BaseProcess
    connection: Connection


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reply:
    """What a rank answers: a value, or why there is none and since when."""

    value: Any = None
    failure: str = ""
    failed_at: float = 0.0


class RankWorkers:
    """A pool of ranks that form one default gloo group, started by the first call.

    Not for several threads: calls run one after the other.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._ranks: list[_Rank] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int | None]:
        """Process ids by rank; none before the first call and after a failure."""
        return [rank.process.pid for rank in self._ranks]

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> list[Any]:
        """Run ``fn(rank, *args)`` on every rank.

        Args:
            fn: module-level function; what it returns must pickle. Its module's variables stay
                from call to call, until a failure.
            args: picklable arguments, the same for every rank.
            timeout_s: deadline for all ranks, start-up included where they have to start.

        Returns:
            What each rank returned, by rank.

        Raises:
            RankError: a rank raised or died.
            TimeoutError: not all ranks answered in time.
        """
        deadline = time.monotonic() + timeout_s
        task = pickle.dumps((fn, args))
        try:
            if not self._ranks:
                self._start()
            for rank in self._ranks:
                # A rank that died since the last call is found when its answer is due.
                with contextlib.suppress(BrokenPipeError):
                    rank.connection.send_bytes(task)
            return self._collect(fn, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all ranks and wait for their end; the next call starts new ones."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.join(_END_TIMEOUT_S)
            rank.connection.close()
        self._ranks = []
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        multiprocessing.set_forkserver_preload(PRELOADED)
        context = multiprocessing.get_context("forkserver")
        self._folder = tempfile.TemporaryDirectory(prefix="workers-")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, self.world_size, self._folder.name, theirs),
                name=f"rank-{rank}",
                daemon=True,
            )
            process.start()
            # Only the rank holds its end from here on, so its death is the end of the stream.
            theirs.close()
            self._ranks.append(_Rank(process=process, connection=ours))

    def _collect(self, fn: Callable[..., Any], deadline: float) -> list[Any]:
        due = {rank.connection: number for number, rank in enumerate(self._ranks)}
        values: dict[int, Any] = {}
        while due:
            ready = wait(list(due), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(
                    f"{fn.__qualname__}: ranks {sorted(due.values())} did not answer in time"
                )
            replies = {due.pop(end): _receive(end) for end in ready if isinstance(end, Connection)}
            if any(reply.failure for reply in replies.values()):
                # A rank that died closed this pipe before its peers could notice and complain.
                replies |= {due[end]: _receive(end) for end in due if end.poll(0)}
                self._raise_first(fn, replies)
            values |= {number: reply.value for number, reply in replies.items()}
        return [values[number] for number in range(self.world_size)]

    def _raise_first(self, fn: Callable[..., Any], replies: dict[int, _Reply]) -> None:
        failed = {number: reply for number, reply in replies.items() if reply.failure}
        number = min(failed, key=lambda number: failed[number].failed_at)
        process = self._ranks[number].process
        process.join(_END_TIMEOUT_S if failed[number].failed_at == 0.0 else 0.0)
        died = "" if process.exitcode is None else f" (exit code {process.exitcode})"
        raise RankError(f"{fn.__qualname__}: rank {number} {failed[number].failure}{died}")


def _receive(connection: Connection) -> _Reply:
    try:
        reply = pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionResetError):
        # First of all failures: peers may have raised only because this rank had gone.
        return _Reply(failure="died", failed_at=0.0)
    assert isinstance(reply, _Reply)
    return reply


def _serve(rank: int, world_size: int, folder: str, connection: Connection) -> None:
    """Answer one task after another; a rank that has raised keeps its connections to peers."""
    torch.set_num_threads(1)
    while True:
        try:
            task = connection.recv_bytes()
        except EOFError:
            return  # The parent has gone.
        try:
            if not dist.is_initialized():
                _join_group(rank, world_size, folder)
            fn, args = pickle.loads(task)
            answer = pickle.dumps(_Reply(value=fn(rank, *args)))
        except BaseException:
            failure = f"raised\n\n{traceback.format_exc()}"
            answer = pickle.dumps(_Reply(failure=failure, failed_at=time.monotonic()))
        connection.send_bytes(answer)


def _join_group(rank: int, world_size: int, folder: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=Path(folder, "store").as_uri(),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=_COLLECTIVE_TIMEOUT_S),
    )
