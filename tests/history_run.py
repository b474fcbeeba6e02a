"""One run of a real balancer under faults, from a seed: what its clients saw, and what is left."""

import asyncio
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from libra.agent.agent import Agent
from libra.agent.settings import AgentSettings
from libra.balancer.history import MAX_POLICIES
from tests.fault_proxy import FAULTS, Fault, FaultProxy
from tests.history import Operation, Violation, violations
from tests.history_clients import (
    POLL_S,
    TIMEOUT_S,
    Recorder,
    page,
    publisher,
    reader,
    watcher,
    while_running,
)
from tests.running import RunningBalancer, make_report, running_balancer

JOB = "watched"
RANKS = 2
_SETTLED_S = 30.0


@dataclass(kw_only=True)
class Course:
    """What happens in a run, drawn from its seed.

    Attributes:
        weights: chance of each fault for a request.
        kills: seconds after which the balancer is killed and begins anew.
        cuts: seconds after which all connections are reset.
    """

    seed: int
    weights: dict[Fault, float]
    kills: list[float]
    cuts: list[float]
    length_s: float


@dataclass(kw_only=True)
class Run:
    """What came of a course."""

    course: Course
    history: list[Operation] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    fired: dict[Fault, int] = field(default_factory=dict)
    kills: int = 0

    @property
    def violations(self) -> list[Violation]:
        oldest = min(self.kept) if len(self.kept) >= MAX_POLICIES else 0
        return violations(self.history, self.kept, oldest_kept=oldest)

    @property
    def acknowledged(self) -> int:
        return sum(own.kind == "publish" and own.version is not None for own in self.history)


def draw_course(seed: int, length_s: float = 3.0) -> Course:
    """Return the course of a seed: a few kinds of faults, a kill or two, a cut."""
    rng = random.Random(seed)
    chosen = rng.sample(FAULTS, rng.randint(2, 5))
    return Course(
        seed=seed,
        weights={fault: rng.uniform(0.02, 0.3 / len(chosen)) for fault in chosen},
        kills=sorted(rng.uniform(0.5, length_s - 0.5) for _ in range(rng.randint(1, 2))),
        cuts=[rng.uniform(0.0, length_s)],
        length_s=length_s,
    )


def run_course(course: Course, directory: Path) -> Run:
    """Run a course to its end, with nothing else going wrong after that."""
    with (
        Balancer(directory / "balancer.sqlite") as balancer,
        FaultProxy(balancer.port, weights=course.weights, seed=course.seed) as proxy,
    ):
        return asyncio.run(_Runner(course, balancer, proxy).run())


class Balancer:
    """A balancer that can be killed and started again on its store."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._stack = ExitStack()
        self.running: RunningBalancer

    @property
    def port(self) -> int:
        return int(self.running.url.rpartition(":")[2])

    def start(self) -> None:
        self.running = self._stack.enter_context(running_balancer(self._store))

    def kill(self) -> None:
        """End the process as a power cut does."""
        self.running.process.kill()
        self._stack.close()

    def __enter__(self) -> "Balancer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Runner:
    def __init__(self, course: Course, balancer: Balancer, proxy: FaultProxy) -> None:
        self._run = Run(course=course)
        self._balancer = balancer
        self._proxy = proxy
        self._recorder = Recorder(job=JOB, torn="corrupt" in course.weights)
        self._agents = [Agent(_settings(proxy.url, rank)) for rank in range(RANKS)]

    async def run(self) -> Run:
        """Run the clients through the course; then look at what is left."""
        self._balancer.running.send(make_report(JOB, world_size=RANKS))
        try:
            async with httpx.AsyncClient(base_url=self._proxy.url, timeout=TIMEOUT_S) as http:
                await while_running([*self._clients(http), self._steps()], self._faults())
            await self._settle()
        finally:
            for agent in self._agents:
                await asyncio.to_thread(agent.close)
        self._run.history = self._recorder.history
        self._run.fired = dict(self._proxy.fired)
        return self._run

    def _clients(self, http: httpx.AsyncClient) -> list[asyncio.Future[None]]:
        recorder = self._recorder
        clients = [
            *(publisher(recorder, http, f"publisher-{n}", 0.08) for n in range(2)),
            *(reader(recorder, http, f"reader-{n}", 0.02) for n in range(2)),
            *(reader(recorder, http, f"poller-{n}", 0.01, wait_s=POLL_S) for n in range(3)),
            *(page(recorder, http, f"page-{n}", 0.02) for n in range(2)),
            *(
                watcher(recorder, lambda agent=agent: agent.policy, f"agent-{rank}", 0.02)  # type: ignore[misc]
                for rank, agent in enumerate(self._agents)
            ),
        ]
        return [asyncio.ensure_future(client) for client in clients]

    async def _steps(self) -> None:
        """Let the agents report steps, so that more than policies is on the way."""
        for step in range(1 << 20):
            for rank, agent in enumerate(self._agents):
                totals = make_report(JOB, sequence=step, rank=rank).steps[0]
                if agent.meter.sink is not None:
                    agent.meter.sink(totals)
            await asyncio.sleep(0.05)

    async def _faults(self) -> None:
        course, began_s = self._run.course, time.monotonic()
        due = [(at, self._restart) for at in course.kills] + [(at, self._cut) for at in course.cuts]
        for at, happen in sorted(due, key=lambda item: item[0]):
            await asyncio.sleep(max(0.0, began_s + at - time.monotonic()))
            await happen()
        await asyncio.sleep(max(0.0, began_s + course.length_s - time.monotonic()))

    async def _restart(self) -> None:
        await asyncio.to_thread(self._balancer.kill)
        await asyncio.to_thread(self._balancer.start)
        self._proxy.upstream = self._balancer.port
        self._run.kills += 1
        # Clients are to meet the balancer that came back, too.
        await asyncio.sleep(0.5)

    async def _cut(self) -> None:
        self._proxy.cut()

    async def _settle(self) -> None:
        """Heal the network; wait until the agents hold what the balancer has at last."""
        self._proxy.weights = {}
        self._proxy.cut()
        deadline_s = time.monotonic() + _SETTLED_S
        while time.monotonic() < deadline_s:
            # Anew each time: a request that was under way may still be answered.
            rows = self._balancer.running.view(f"{JOB}/policies")["policies"]
            self._run.kept = {row["version"]: row["checksum"] for row in rows}
            self._run.held = [agent.policy.version for agent in self._agents]
            if self._run.held == [max(self._run.kept, default=0)] * RANKS:
                return
            await asyncio.sleep(0.05)


def _settings(url: str, rank: int) -> AgentSettings:
    return AgentSettings(
        balancer=url,
        job=JOB,
        rank=rank,
        world_size=RANKS,
        node=f"node-{rank}",
        interval_s=0.1,
        connect_timeout_s=0.5,
        timeout_s=0.7,
        poll_wait_s=POLL_S,
        first_retry_s=0.05,
        max_retry_s=0.4,
    )
