"""All ranks of a launch report and decide as one, whatever count of restarts each was given."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from libra.agent import launch as launch_module
from libra.agent.agent import Agent
from libra.agent.joining import join_beside
from libra.agent.launch import Launch, join_launch
from libra.agent.meter import StepMeter
from libra.agent.reporter import Reporter
from libra.agent.sampler import PoolSampler
from libra.agent.settings import settings_from_env
from libra.attention.pooled import PooledAttention
from libra.balancer.policy import Policy
from tests.attention_case import Mesh, mesh_pools
from tests.balancers import ToldBalancer, acknowledge, delivered, eventually
from tests.nodes import settings, train_from
from tests.ranks import run_ranks
from tests.running import running_balancer
from tests.stores import connect, serve

RANKS = 4


@pytest.fixture
def server() -> Any:
    """A TCPStore's server; ranks connect to its port."""
    return serve()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make this process seem another one from now on."""

    def become(name: str) -> None:
        monkeypatch.setattr(launch_module, "_process", lambda _: name)

    return become


def join(store: Any, rank: int, attempt: int = 0, run: str = "") -> Launch:
    return join_launch(store, rank=rank, run=run, attempt=attempt)


def test_racing_ranks_with_other_counts_are_one_launch(server: Any) -> None:
    """Whoever comes first names it, and all leave with that name and count."""
    trials = 20
    barrier = threading.Barrier(RANKS)

    def run(rank: int) -> list[Launch]:
        store, launches = connect(server.port), []
        for trial in range(trials):
            barrier.wait(60)
            own = PrefixStore(str(trial), store)
            launches.append(join(own, rank, attempt=rank, run=f"node-{rank}"))
        return launches

    with ThreadPoolExecutor(RANKS) as pool:
        outcomes = list(pool.map(run, range(RANKS)))

    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert len(set(outcomes[0])) == trials


def test_two_launches_differ_though_the_environment_does_not(server: Any) -> None:
    """A job that is started again under the same names and counts is not taken for the first."""
    first = join(PrefixStore("first", server), 0, run="none")

    assert join(PrefixStore("second", server), 0, run="none").run != first.run
    assert first.run.startswith("none.")


def test_a_store_that_outlives_a_launch_tells_the_next(server: Any, process: Any) -> None:
    """Another process of a rank is another launch; counts grow whatever the environment says."""
    process("first")
    first = {join(server, rank, attempt=2) for rank in range(RANKS)}
    process("second")
    second = {join(server, rank, attempt=rank) for rank in (2, 0, 1, 3)}
    process("third")
    # The world has grown: a rank that was in neither.
    third = {join(server, rank) for rank in (1, 7, 0)}

    assert [len(own) for own in (first, second, third)] == [1, 1, 1]
    assert [own.pop().attempt for own in (first, second, third)] == [2, 3, 4]


def test_a_process_that_asks_again_gets_the_same(server: Any, process: Any) -> None:
    """An agent, a sampler and one for validation of a rank are of one launch."""
    process("one")
    assert len({join(server, rank, attempt=3) for rank in (0, 1, 0, 1)}) == 1


def test_a_run_fits_into_a_report(server: Any) -> None:
    """However long the scheduler's own name is."""
    assert len(join(server, 0, run="x" * 128).run) <= 128


def _train(rank: int, url: str) -> tuple[list[int], tuple[str, int]]:
    """Agree on steps as torchrun's ranks of two nodes do, of which one was restarted."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(rank % 2)
    environ = dict(os.environ) | {"LIBRA_BALANCER": url, "LIBRA_JOB": "job"}
    own = settings_from_env(environ, rank=rank, world_size=2)
    assert own is not None
    pools = mesh_pools(Mesh(ranks=2, cp=1, pool=2))
    sampler = PoolSampler(
        [64] * 64, pools, tokens=128, global_batch=2, query_heads=4, kv_heads=4, packing="stream"
    )
    with Agent(own) as agent:
        agent.attach(PooledAttention(pools), sampler)
        sampler.policy_source = lambda: Policy(version=10 + rank, pooling=True)
        versions = []
        for step in range(4):
            # Whichever comes first decides, and the other comes after all.
            if step % 2 != rank:
                dist.barrier()
            versions.append(sampler.agree(step).version)
            if step % 2 == rank:
                dist.barrier()
        assert eventually(lambda: not agent._reporter.held)
        train_from(agent, 0, 3)
        assert eventually(lambda: agent._reporter.sent > 0)
        return versions, agent._reporter.launch


@pytest.mark.dist
def test_ranks_with_other_restart_counts_decide_and_report_as_one() -> None:
    """No step of theirs is decided twice, no rank fails, and the balancer sees one launch."""
    with ToldBalancer(acknowledge) as balancer:
        outcomes = run_ranks(_train, 2, balancer.url)
        reports = delivered(balancer.requests)

    assert [versions for versions, _ in outcomes] == [[10, 11, 10, 11]] * 2
    assert len({(report.run, report.attempt) for report in reports}) == 1
    assert {report.rank for report in reports} == {0, 1}
    assert outcomes[0][1] == outcomes[1][1]


def _report(rank: int, url: str) -> int:
    """Report steps and return how many the balancer counted from this rank."""
    own = settings(url, rank, world_size=2, local_world_size=2, attempt=rank, relay=False)
    with Agent(own) as agent:
        join_beside(agent._reporter, None)
        train_from(agent, 0, 5)
        assert eventually(lambda: agent._reporter.sent > 0 and not agent._reporter.unsent_steps)
    return agent._reporter.refused


@pytest.mark.dist
def test_the_balancer_counts_steps_of_ranks_with_other_counts(tmp_path: Path) -> None:
    """Steps of a real balancer's job are complete: nobody's reports come late."""
    with running_balancer(tmp_path / "db") as balancer:
        assert run_ranks(_report, 2, balancer.url) == [0, 0]
        text = balancer.client.get("/metrics").text
    assert _value(text, "late") == 0
    assert _value(text, "accepted") >= 2


def _value(text: str, result: str) -> float:
    rows = [line for line in text.splitlines() if line.startswith("libra_reports_total")]
    return sum(float(row.split()[-1]) for row in rows if f'"{result}"' in row)


@pytest.mark.fault
def test_reports_wait_for_the_launch_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """A store that hangs costs the timeout; then the environment's names stand, and nothing is
    lost."""

    class Hung:
        def check(self, _: list[str]) -> bool:
            over.wait(60)
            return False

    over = threading.Event()
    with ToldBalancer(acknowledge) as balancer, Agent(settings(balancer.url, 0)) as agent:
        reporter = agent._reporter
        with _group_of_one():
            join_beside(reporter, Hung(), timeout_s=0.5)  # type: ignore[arg-type]
        assert reporter.held
        train_from(agent, 0, 5)
        assert eventually(lambda: not reporter.held)
        assert eventually(lambda: not reporter.unsent_steps and reporter.sent > 0)
        over.set()
        reports = delivered(balancer.requests)
    assert {(report.run, report.attempt) for report in reports} == {("", 0)}
    assert [step.step for report in reports for step in report.steps] == [0, 1, 2, 3, 4]
    assert "does not tell which launch" in caplog.text


def test_a_held_rank_says_nothing() -> None:
    """Under its own names it would be taken for a new launch, and the others come late."""
    own = settings("http://127.0.0.1:1", 0)
    reporter = Reporter(own, StepMeter(), _NoOutlet())
    reporter.held = True

    assert reporter._draw() is None
    assert not reporter.attached


def _group_of_one() -> Any:
    """Return a default group of this process alone."""

    class Group:
        def __enter__(self) -> None:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

        def __exit__(self, *_: object) -> None:
            dist.destroy_process_group()

    return Group()


class _NoOutlet:
    async def send(self, report: Any, *, urgent: bool = False) -> Any:
        raise AssertionError
