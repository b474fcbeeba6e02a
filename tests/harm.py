"""A small training job that an agent watches, and balancers to try it on.

One layer of attention between projections, trained with SGD; everything that decides a loss comes
from the step's number, so two runs can be compared bit by bit.

Shapes: T tokens of a packed sequence; H heads of D features.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from libra.agent.agent import Agent
from libra.agent.sampler import PoolSampler
from libra.agent.settings import AgentSettings
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from tests.attention_case import Mesh, mesh_pools
from tests.balancers import Reply, Request, ToldBalancer, acknowledge

HEADS, HEAD_DIM = 4, 32
_HIDDEN = HEADS * HEAD_DIM


@dataclass(frozen=True, kw_only=True)
class HarmJob:
    """What every rank runs.

    Attributes:
        ranks: that form one pool.
        tokens: T.
        agent: settings of the agents beside address, job and rank.
    """

    ranks: int = 1
    tokens: int = 512
    agent: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class HarmRun:
    """What some steps came to.

    Attributes:
        losses: of each step.
        step_s: wall seconds of each.
        agent_cpu_s: CPU seconds of the agent's thread, its end not included.
        reports, failures: of the agent's reporter.
    """

    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    agent_cpu_s: float = 0.0
    reports: int = 0
    failures: int = 0


class Trainer:
    """One rank's model; ``run`` begins anew from the same weights each time."""

    def __init__(self, rank: int, job: HarmJob) -> None:
        self._rank, self._job = rank, job
        self._pools = mesh_pools(Mesh(ranks=job.ranks, cp=1, pool=job.ranks))
        self._attention = PooledAttention(self._pools)
        self._runs = 0

    def run(
        self, steps: int, *, balancer: str | None, least_reports: int = 0, settle_steps: int = 0
    ) -> HarmRun:
        """Train so many steps beside an agent, without one where there is no balancer.

        The run goes on, its losses unrecorded, until the reporter has tried ``least_reports``. Of
        its first ``settle_steps`` neither time nor CPU counts: what an agent does once is not
        what it costs.
        """
        self._runs += 1
        torch.manual_seed(self._rank)
        model = nn.ModuleList(nn.Linear(_HIDDEN, _HIDDEN) for _ in range(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        agent, sampler, done = self._agent(balancer), self._sampler(), HarmRun()
        agent.attach(self._attention, sampler)
        settled_cpu_s = 0.0
        for step in range(settle_steps + steps):
            if step == settle_steps and balancer is not None:
                settled_cpu_s = thread_cpu_s("libra-agent")
            began_s = time.perf_counter()
            done.losses.append(self._step(model, optimizer, sampler, step))
            agent.end_step()
            if step >= settle_steps:
                done.step_s.append(time.perf_counter() - began_s)
        if balancer is not None:
            _wait_for(agent, least_reports)
            done.agent_cpu_s = thread_cpu_s("libra-agent") - settled_cpu_s
            done.reports = agent._reporter.sent
            done.failures = agent._reporter._backoff.failures + agent._reporter.refused
        agent.close()
        self._attention.observer = None
        return done

    def _agent(self, balancer: str | None) -> Agent:
        if balancer is None:
            return Agent(None)
        own = {"rank": self._rank, "world_size": self._job.ranks, **self._job.agent}
        return Agent(AgentSettings(balancer=balancer, job="job", **own))

    def _sampler(self) -> PoolSampler:
        tokens, ranks = self._job.tokens, self._job.ranks
        lengths = np.random.default_rng(3).integers(16, tokens // 2, 64 * ranks)
        return PoolSampler(
            lengths,
            self._pools,
            tokens=tokens,
            global_batch=ranks,
            query_heads=HEADS,
            kv_heads=HEADS,
            planning=PlanSettings(block_rows=32),
            packing="stream",
            name=f"run-{self._runs}",
        )

    def _step(
        self, model: nn.ModuleList, optimizer: torch.optim.SGD, sampler: PoolSampler, step: int
    ) -> float:
        inputs = torch.randn(
            self._job.tokens, _HIDDEN, generator=torch.Generator().manual_seed(step)
        )
        total = 0.0
        optimizer.zero_grad()
        for cell in sampler.cells(step, sampler.agree(step)):
            self._attention.prepare(cell.layout)
            shape = self._job.tokens, HEADS, HEAD_DIM
            q, k, v = (project(inputs).view(shape) for project in list(model)[:3])
            out = self._attention(q, k, v, cell.layout).reshape(self._job.tokens, _HIDDEN)
            loss = mse_loss(model[3](out), inputs)
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total


def _wait_for(agent: Agent, least_reports: int, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    reporter = agent._reporter
    while reporter.sent + reporter._backoff.failures + reporter.refused < least_reports:
        assert time.monotonic() < deadline_s, "the agent has not tried to report"
        time.sleep(0.01)


def thread_cpu_s(name: str) -> float:
    """Return CPU seconds of this process's threads of a name."""
    clocks = [
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.name == name and thread.ident is not None
    ]
    return sum(time.clock_gettime(clock) for clock in clocks)


FULL_DISK = Reply(status=503, headers={"Retry-After": "1"}, body=b'{"detail": "disk full"}')
NOT_MODIFIED = Reply(status=304, body=b"")


def balancer_in(mode: str) -> ToldBalancer:
    """Return a balancer that is healthy, hung, slow, full or talks garbage."""

    def answer(request: Request) -> Reply:
        if mode == "hung":
            return Reply(hang=True)
        if mode == "garbage":
            return Reply(raw=b"\x00\xff" * 4096 + b"\r\n\r\n")
        if mode == "full disk" and request.method == "POST":
            return FULL_DISK
        if mode == "slow":
            balancer.closing.wait(10.0)
        return acknowledge(request) if request.method == "POST" else NOT_MODIFIED

    balancer = ToldBalancer(answer)
    return balancer


BALANCERS = ("healthy", "hung", "slow", "garbage", "full disk")
