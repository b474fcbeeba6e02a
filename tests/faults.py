"""Ranks of which one fails inside attention, and what the others are told.

The ranks are 2 x 2: planes are {0, 2} and {1, 3}, CP groups {0, 1} and {2, 3}. A first step goes
well, then the victim fails in the second. Ranks that need nothing more of it end that step, and
hear of it in the third. The others stay alive after their error, so that who waits for them hears
of the failure in no other way than its own timeout.
"""

import datetime
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from libra.attention.sdpa import SdpaCpuKernel
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec
from tests.ranks import PRELOADED

RANKS = 4
TOKENS = 64
GROUP_TIMEOUT_S = 4.0
# Beyond the timeout: 16 s that a roll call may take at most, and a busy machine's start-up.
DEADLINE_S = 2 * GROUP_TIMEOUT_S + 16.0 + 40.0

# raise, kill and stop happen in a kernel, while an exchange is in flight; a rank refuses its
# input, or is absent, before.
Kind = Literal["raise", "kill", "stop", "refuse", "absent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What happens to which rank.

    Attributes:
        kind: what happens.
        backward: in backward, else in forward.
        victim: to whom.
        query_heads: 4 make planes, 3 do not divide by the CP size and make the pool one group.
        tcp: the store is served by rank 0, else it is a file.
        elastic: the pool is one of twice P CP groups, else of P.
    """

    kind: Kind
    victim: int
    backward: bool = False
    query_heads: int = 4
    tcp: bool = False
    elastic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What one rank saw: the type and message of its error, empty if there was none."""

    error: str
    message: str
    moved: int


class _FailingKernel(SdpaCpuKernel):
    """A kernel that fails once it is armed."""

    def __init__(self, fault: Fault) -> None:
        self.armed = False
        self._fault = fault

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Segments,
        spec: AttentionSpec,
        out: Tensor,
        logsumexp: Tensor,
    ) -> None:
        if self.armed and not self._fault.backward:
            self._fail()
        super().forward(q, k, v, segments, spec, out, logsumexp)

    def backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        segments: Segments,
        spec: AttentionSpec,
        grads: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        if self.armed and self._fault.backward:
            self._fail()
        super().backward(grad_out, q, k, v, out, logsumexp, segments, spec, grads)

    def _fail(self) -> None:
        if self._fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._fault.kind == "raise":
            raise ArithmeticError("the kernel is broken")


def run_with_fault(fault: Fault) -> dict[int, Told]:
    """Return what each rank that could tell was told, by rank.

    Raises:
        TimeoutError: a rank other than the victim told nothing in time.
    """
    multiprocessing.set_forkserver_preload([*PRELOADED, "tests.faults"])
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        url = f"tcp://127.0.0.1:{_free_port()}" if fault.tcp else Path(folder, "store").as_uri()
        pipes = [context.Pipe() for _ in range(RANKS)]
        processes = [
            context.Process(target=_rank, args=(rank, url, fault, pipes[rank][1]), daemon=True)
            for rank in range(RANKS)
        ]
        try:
            for process, (_, theirs) in zip(processes, pipes, strict=True):
                process.start()
                theirs.close()
            return _collect([ours for ours, _ in pipes], fault)
        finally:
            for process in processes:
                process.kill()
                process.join(30.0)


def _collect(pipes: list[Connection], fault: Fault) -> dict[int, Told]:
    deadline = time.monotonic() + DEADLINE_S
    due = {pipe: rank for rank, pipe in enumerate(pipes)}
    told: dict[int, Told] = {}
    while set(due.values()) - {fault.victim}:
        ready = wait(list(due), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"{fault}: ranks {sorted(due.values())} were told nothing")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = due.pop(pipe)
            try:
                told[rank] = pipe.recv()
            except EOFError:
                assert rank == fault.victim
    return told


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(rank: int, url: str, fault: Fault, pipe: Connection) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60.0)
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=RANKS, timeout=timeout)
    pools = _pools(elastic=fault.elastic)
    kernel = _FailingKernel(fault)
    attention = PooledAttention(pools, kernel=kernel)
    layouts = [_layout(pools, fault, step) for step in range(3)]
    _step(attention, layouts[0], rows=TOKENS // 2)
    kernel.armed = rank == fault.victim
    error: Exception | None = None
    try:
        if not (kernel.armed and fault.kind == "absent"):
            rows = 1 if kernel.armed and fault.kind == "refuse" else TOKENS // 2
            for layout in layouts[1:]:
                _step(attention, layout, rows=rows)
    except Exception as raised:
        error = raised
    name = type(error).__name__ if error else ""
    pipe.send(Told(error=name, message=str(error), moved=layouts[1].plan.moved))
    # Stay, with all connections open, until the test kills this rank.
    pipe.recv()


def _pools(*, elastic: bool) -> SequencePools:
    timeout: Any = datetime.timedelta(seconds=GROUP_TIMEOUT_S)
    ranks = torch.arange(RANKS).view(2, 2)
    groups: list[Any] = [
        dist.new_subgroups_by_enumeration(each.tolist(), timeout=timeout)[0]
        for each in (ranks.T, ranks)
    ]
    mesh = DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("dp", "cp"))
    return SequencePools(mesh, 1 if elastic else 2, largest_pool=2, timeout=timeout)


def _layout(pools: SequencePools, fault: Fault, step: int) -> BatchLayout:
    return make_layout(
        [[TOKENS], [8] * (TOKENS // 8)],
        pools.of(2).place,
        tokens=TOKENS,
        heads=HeadSplit(query_heads=fault.query_heads, kv_heads=fault.query_heads, cp=2),
        cp_rank=pools.cp_rank,
        settings=PlanSettings(block_rows=8, min_gain_permille=0),
        step=step,
    )


def _step(attention: PooledAttention, layout: BatchLayout, *, rows: int) -> None:
    shape = rows, layout.heads.query_heads, 32
    q, k, v = (torch.ones(shape, requires_grad=True) for _ in range(3))
    attention(q, k, v, layout).sum().backward()
