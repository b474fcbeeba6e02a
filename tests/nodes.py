"""A node of ranks with agents, its relay among them, and what a balancer heard of them."""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from libra.agent.agent import Agent
from libra.agent.settings import AgentSettings
from libra.balancer.policy import HOME_POLICY, Policy, encode_policy
from tests.balancers import (
    Reply,
    Request,
    ToldBalancer,
    acknowledge,
    delivered,
    eventually,
    sent,
)
from tests.layouts import two_sequence_layout
from tests.running import ROOT
from tests.test_meter import note

RANKS = 4
POLICY = Policy(version=3, pooling=True)
OFFER = Reply(status=200, headers={"ETag": f'"{POLICY.checksum}"'}, body=encode_policy(POLICY))
GONE = Reply(status=304, body=b"")
# No step of a test is trained twice.
NUMBERS = itertools.count(0, 10)


def settings(url: str, rank: int, **changes: Any) -> AgentSettings:
    """Return settings of one of a node's ranks: a quick pace, deadlines that no test meets."""
    quick = {"interval_s": 0.1, "first_retry_s": 0.02, "max_retry_s": 0.2}
    patient = {"connect_timeout_s": 60.0, "timeout_s": 60.0, "close_timeout_s": 60.0}
    own = {"rank": rank, "local_rank": rank, "world_size": RANKS, "local_world_size": RANKS}
    return AgentSettings(balancer=url, **{"job": "job", **quick, **patient, **own, **changes})


def answer(request: Request) -> Reply:
    """Answer as a balancer without a policy yet."""
    etag = f'"{HOME_POLICY.checksum}"'
    return acknowledge(request, policy=etag) if request.method == "POST" else GONE


def steps_of(requests: list[Request]) -> dict[int, list[int]]:
    """Return the steps that arrived, by rank."""
    steps: dict[int, list[int]] = {rank: [] for rank in range(RANKS)}
    for report in delivered(requests):
        steps[report.rank] += [step.step for step in report.steps]
    return steps


def batches(balancer: ToldBalancer) -> list[Request]:
    return [request for request in list(balancer.requests) if request.path.endswith("/batches")]


def single(balancer: ToldBalancer) -> list[int]:
    """Return the ranks whose reports came by themselves, in order."""
    posts = [request for request in list(balancer.requests) if request.path.endswith("/reports")]
    return [report.rank for request in posts for report in sent(request)]


@contextlib.contextmanager
def node(url: str, ranks: range = range(RANKS), **changes: Any) -> Iterator[list[Agent]]:
    """Run the agents of a node's ranks, the relay first."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Agent(settings(url, rank, **changes))) for rank in ranks]


def together(balancer: ToldBalancer, agents: list[Agent]) -> bool:
    """Tell whether one batch came with reports of all these ranks."""
    ranks = {agent._reporter._settings.rank for agent in agents}
    return any(ranks <= {own.rank for own in sent(each)} for each in batches(balancer))


def trained(agents: list[Agent], balancer: ToldBalancer, first: int | None = None) -> bool:
    """Train some steps on all ranks; tell whether all of them arrive."""
    first = next(NUMBERS) if first is None else first
    for agent in agents:
        train_from(agent, first, 5)
    wanted = set(range(first, first + 5))
    ranks = [agent._reporter._settings.rank for agent in agents]
    return eventually(lambda: all(wanted <= set(steps_of(balancer.requests)[r]) for r in ranks))


def meet(agents: list[Agent], balancer: ToldBalancer) -> None:
    """Train until these ranks report together through their relay."""
    while not together(balancer, agents):
        assert trained(agents, balancer)


def train_from(agent: Agent, first: int, count: int) -> None:
    for step in range(first, first + count):
        agent.meter.begin(two_sequence_layout(step=step))
        note(agent.meter)
        agent.end_step()


LEADER = """
import json, sys
from libra.agent.agent import Agent
from libra.agent.settings import AgentSettings
agent = Agent(AgentSettings(**json.loads(sys.argv[1])))
print("up", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def leader_process(own: AgentSettings) -> Iterator["subprocess.Popen[str]"]:
    """Run the first rank in a process of its own, which can be stopped and killed."""
    fields = {name: getattr(own, name) for name in own.__slots__}
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, json.dumps(fields)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()
