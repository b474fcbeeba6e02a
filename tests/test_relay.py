"""A node is one connection and one request an interval, and no report depends on its relay."""

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest

from libra.agent import relay
from libra.agent.agent import Agent
from libra.agent.relay import Relay
from libra.agent.relay_client import RelayClient
from tests.balancers import (
    Reply,
    Request,
    ToldBalancer,
    acknowledge,
    eventually,
    no_thread_left,
)
from tests.nodes import (
    OFFER,
    POLICY,
    RANKS,
    answer,
    leader_process,
    meet,
    node,
    settings,
    single,
    steps_of,
    train_from,
    trained,
)
from tests.running import make_report, running_balancer
from tests.test_agent import train


def test_a_node_is_one_connection_and_one_request_an_interval(runtime_folder: Path) -> None:
    """Reports of all ranks go in one batch, on the leader's connection, each step once."""
    with ToldBalancer(answer) as balancer, no_thread_left(), node(balancer.url) as agents:
        meet(agents, balancer)
        # From here on all ranks hand their reports over.
        connections, asked, began_s = set(balancer.connections), len(balancer.requests), time.time()
        assert trained(agents, balancer)
        assert trained(agents, balancer)
        taken_s = time.time() - began_s
        assert len(balancer.requests) - asked <= 2 + taken_s / 0.1
        assert balancer.connections == connections
        assert list(runtime_folder.glob("libra/*.relay"))

    steps = steps_of(balancer.requests)
    assert all(len(own) == len(set(own)) for own in steps.values())
    assert not list(runtime_folder.glob("libra/*.relay"))


def test_ranks_get_the_policy_from_their_relay(runtime_folder: Path) -> None:
    """The leader fetches a policy once when an acknowledgement tells of it; ranks never ask."""
    published = threading.Event()

    def told(request: Request) -> Reply:
        if not published.is_set():
            return answer(request)
        post = request.method == "POST"
        return acknowledge(request, policy=f'"{POLICY.checksum}"') if post else OFFER

    with ToldBalancer(told) as balancer, node(balancer.url) as agents:
        meet(agents, balancer)
        published.set()
        connections = set(balancer.connections)
        asked = len(balancer.asked("GET"))
        while not all(agent.policy == POLICY for agent in agents):
            assert trained(agents, balancer)
        # One poll may have been under way on each connection there was.
        assert len(balancer.asked("GET")) - asked <= 1 + RANKS
        assert len(balancer.connections - connections) <= 1


@pytest.mark.fault
def test_a_relay_that_ends_loses_nothing(runtime_folder: Path) -> None:
    """When the first rank's agent closes, the others report by themselves, each step once."""
    with ToldBalancer(answer) as balancer, node(balancer.url, range(1, RANKS)) as others:
        with Agent(settings(balancer.url, 0)) as leader:
            meet([leader, *others], balancer)
        for agent in others:
            train_from(agent, 10_000, 50)
        assert trained(others, balancer, first=20_000)
        assert eventually(lambda: set(single(balancer)) >= {1, 2, 3})

    for rank, own in steps_of(balancer.requests).items():
        assert len(own) == len(set(own))
        assert rank == 0 or set(range(10_000, 10_050)) <= set(own)


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_relay_that_dies_or_hangs_loses_nothing(
    number: signal.Signals, runtime_folder: Path
) -> None:
    """Ranks wait for it no longer than the deadline; what it held comes from them, once."""
    with (
        ToldBalancer(answer) as balancer,
        leader_process(settings(balancer.url, 0)) as process,
        node(balancer.url, range(1, RANKS), timeout_s=1.0) as others,
    ):
        meet(others, balancer)
        before = len(single(balancer))
        process.send_signal(number)
        for agent in others:
            train_from(agent, 10_000, 50)

        assert trained(others, balancer, first=20_000)
        assert eventually(lambda: set(single(balancer)[before:]) >= {1, 2, 3})
        outlets = [agent._reporter._outlet for agent in others]
        assert all(isinstance(each, RelayClient) and each.failures for each in outlets)

    for own in steps_of(balancer.requests).values():
        assert len(own) == len(set(own))
    assert all(
        set(range(10_000, 10_050)) <= set(steps_of(balancer.requests)[rank]) for rank in (1, 2, 3)
    )


@pytest.mark.fault
def test_a_restarted_relay_is_found_again(runtime_folder: Path) -> None:
    """Ranks that report by themselves try the relay now and then, and return to it."""
    with ToldBalancer(answer) as balancer, node(balancer.url, range(1, RANKS)) as others:
        assert trained(others, balancer)
        assert set(single(balancer)) == {1, 2, 3}
        with Agent(settings(balancer.url, 0)) as leader:
            meet([leader, *others], balancer)


def test_a_batch_is_of_one_launch() -> None:
    """Ranks that learned of their launch at other moments are not reported under one name."""
    reports = [make_report("job", rank=rank, run="ab"[rank // 2]) for rank in range(RANKS)]

    async def parts() -> list[list[str]]:
        rows = [relay._Row(report=report) for report in reports]
        return [[row.report.run for row in part] for part in relay._parts(rows)]

    assert asyncio.run(parts()) == [["a", "a"], ["b", "b"]]


def test_a_process_that_ends_does_not_wait_for_the_next_batch(runtime_folder: Path) -> None:
    """The last reports of a node leave at once, in time for an exit of one second."""
    with ToldBalancer(answer) as balancer:
        with node(balancer.url, interval_s=600.0) as agents:
            for agent in agents:
                train(agent, steps=3)
        assert all(own == [0, 1, 2] for own in steps_of(balancer.requests).values())


def test_a_real_balancer_hears_every_rank_of_a_node(runtime_folder: Path, tmp_path: Path) -> None:
    """Ranks that report through their relay are told apart, and each step counts once."""
    with (
        running_balancer(tmp_path / "db") as balancer,
        node(balancer.url, world_size=RANKS) as agents,
    ):
        for agent in agents:
            train_from(agent, 0, 20)
        assert eventually(lambda: all(not agent._reporter.unsent_steps for agent in agents))
        assert eventually(lambda: all(agent._reporter.sent for agent in agents))
        assert not any(agent._reporter.refused for agent in agents)
        outlets = [agent._reporter._outlet for agent in agents]
        assert [type(outlet) for outlet in outlets] == [Relay] + [RelayClient] * (RANKS - 1)
        rows = balancer.client.get("/api/v1/jobs").json()
    assert len(rows["jobs"] if isinstance(rows, dict) else rows) == 1
