"""A real job under a real balancer: gloo ranks that attend to packed sequences step by step.

Its ranks do nothing but attention, so that a short job shows what the loop does. One of them can
be slowed: its process is stopped and continued by turns, and no clock of its own knows.

Shapes: T tokens of a packed sequence; H heads of D features.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from libra.agent.agent import Agent
from libra.agent.sampler import PoolSampler
from libra.agent.settings import AgentSettings
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from tests.attention_case import Mesh, mesh_pools

HEADS, HEAD_DIM = 4, 64
# A stop and a go together, short against a step, so that every step is slowed alike.
_CYCLE_S = 0.012


@dataclass(frozen=True, kw_only=True)
class WatchedJob:
    """What every rank is told.

    Attributes:
        url: the balancer's.
        folder: where each rank leaves its process id, and rank 0 each step that it begins.
        steps: to run.
        tokens: T.
        uneven: standard deviation of the logarithm of document lengths.
    """

    url: str
    folder: str
    name: str
    world_size: int = 2
    steps: int = 120
    tokens: int = 4096
    uneven: float = 1.2

    def step(self) -> int:
        """Return the newest step that rank 0 began, -1 before the first."""
        file = Path(self.folder, "step")
        return int(file.read_text() or -1) if file.exists() else -1

    def pid(self, rank: int) -> int:
        return int(Path(self.folder, f"pid.{rank}").read_text())


def run_watched(rank: int, job: WatchedJob) -> None:
    """Run one rank of the job."""
    Path(job.folder, f"pid.{rank}").write_text(str(os.getpid()))
    pools = mesh_pools(Mesh(ranks=job.world_size, cp=1, pool=job.world_size))
    sampler = PoolSampler(
        _lengths(job),
        pools,
        tokens=job.tokens,
        global_batch=job.world_size,
        query_heads=HEADS,
        kv_heads=HEADS,
        planning=PlanSettings(block_rows=32),
        packing="stream",
    )
    attention = PooledAttention(pools)
    settings = AgentSettings(
        balancer=job.url, job=job.name, rank=rank, world_size=job.world_size, interval_s=0.1
    )
    torch.manual_seed(rank)
    q, k, v = (torch.randn(job.tokens, HEADS, HEAD_DIM, requires_grad=True) for _ in range(3))
    with Agent(settings) as agent:
        agent.attach(attention, sampler)
        for step in range(job.steps):
            if rank == 0:
                _write(Path(job.folder, "step"), str(step))
            for cell in sampler.cells(step, sampler.agree(step)):
                attention.prepare(cell.layout)
                attention(q, k, v, cell.layout).sum().backward()
            # What a real step has here is the sum of gradients: all wait for the slowest.
            dist.barrier()
            agent.end_step()


def _lengths(job: WatchedJob) -> list[int]:
    rng = np.random.default_rng(3)
    documents = job.steps * job.world_size * job.tokens // 256
    drawn = rng.lognormal(6.5, job.uneven, documents)
    return [min(max(int(length), 32), job.tokens) for length in drawn]


def _write(file: Path, text: str) -> None:
    # Whoever reads sees the old number or the new one, never half of it.
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


@contextmanager
def slowed(pid: int, factor: float) -> Iterator["DutyCycle"]:
    """Let a process run ``1 / factor`` of the time, from the block's begin to its end."""
    with DutyCycle(pid, factor) as cycle:
        yield cycle


class DutyCycle:
    """Stops and continues a process by turns; ``stops`` counts them."""

    def __init__(self, pid: int, factor: float) -> None:
        self.stops = 0
        self._pid, self._run_s = pid, _CYCLE_S / factor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._cycle)

    def __enter__(self) -> "DutyCycle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _cycle(self) -> None:
        while not self._ended.wait(self._run_s):
            if not self._signal(signal.SIGSTOP):
                return
            self.stops += 1
            self._ended.wait(_CYCLE_S - self._run_s)
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:  # the job is over
            return False
        return True
