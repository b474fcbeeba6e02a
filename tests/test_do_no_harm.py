"""Training with an agent is training without one, whatever the balancer does."""

import contextlib
import gc
import logging
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from libra.agent.agent import Agent
from libra.agent.meter import StepMeter
from libra.agent.settings import AgentSettings
from libra.attention.layout import BatchLayout
from tests.balancers import ToldBalancer, acknowledge, eventually
from tests.failing_agent import Injection, watch_a_step
from tests.harm import BALANCERS, HarmJob, HarmRun, Trainer, balancer_in
from tests.layouts import two_sequence_layout
from tests.ranks import run_ranks
from tests.running import ROOT
from tests.test_meter import note

STEPS = 12
DEADLINES = {"interval_s": 0.05, "timeout_s": 0.3, "poll_wait_s": 0.3, "close_timeout_s": 0.2}
JOB = HarmJob(ranks=2, agent={**DEADLINES, "first_retry_s": 0.02, "max_retry_s": 0.1})
# What waits for other ranks or for the device.
COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "barrier", "send", "recv", "reduce")


@contextlib.contextmanager
def balancers() -> Iterator[dict[str, str]]:
    """Run a balancer of each sort; give their addresses, and that of a dead one."""
    with contextlib.ExitStack() as stack:
        told = {mode: stack.enter_context(balancer_in(mode)) for mode in BALANCERS}
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        yield {mode: balancer.url for mode, balancer in told.items()} | {"dead": dead}
        # The fault came to pass: every one of them was asked.
        assert all(balancer.asked("POST") for balancer in told.values())


def _train_in_all(rank: int, urls: dict[str, str]) -> tuple[dict[str, HarmRun], list[str]]:
    """Train beside each balancer; return the runs, and who on the agent's side waited for ranks."""
    torch.set_num_threads(1)
    waited: list[str] = []
    for owner, name in [(torch.cuda, "synchronize"), *((dist, name) for name in COLLECTIVES)]:
        setattr(owner, name, _watched(getattr(owner, name), name, waited))
    trainer = Trainer(rank, JOB)
    runs = {"off": trainer.run(STEPS, balancer=None)}
    for mode, url in urls.items():
        runs[mode] = trainer.run(STEPS, balancer=url, least_reports=2)
    return runs, waited


def _watched(call: object, name: str, waited: list[str]) -> object:
    def watched(*args: object, **kwargs: object) -> object:
        files = [frame.f_code.co_filename for frame in _frames()]
        agents = [file for file in files if "/agent/" in file]
        # The sampler agrees through the store alone, and the operator has its own collectives.
        if threading.current_thread().name == "libra-agent" or any(
            file.endswith(("agent/agent.py", "meter.py", "reporter.py")) for file in agents
        ):
            waited.append(name)
        assert callable(call)
        return call(*args, **kwargs)

    return watched


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@pytest.mark.fault
@pytest.mark.dist
def test_losses_are_the_same_bit_by_bit() -> None:
    """Two ranks train as without an agent beside every sort of balancer; no collective is made."""
    with balancers() as urls:
        outcomes = run_ranks(_train_in_all, JOB.ranks, urls, timeout_s=240)
    for runs, waited in outcomes:
        assert waited == []
        assert len(set(runs["off"].losses)) == STEPS
        for mode, run in runs.items():
            assert run.losses == runs["off"].losses, mode
            if mode == "healthy":
                assert run.reports >= 2
            elif mode != "off":
                assert run.failures >= 1, mode
            share = run.agent_cpu_s / sum(run.step_s)
            print(f"{mode}: the agent's thread took {share:.2%} of its steps' time")


FORGE = """
import dataclasses, sys, time
from libra.agent.agent import Agent
from libra.agent.settings import AgentSettings
from libra.attention.layout import BatchLayout
from tests.layouts import two_sequence_layout
own = AgentSettings(balancer=sys.argv[1], job="job", interval_s=0.02)
with Agent(own) as agent:
    deadline = time.monotonic() + 60
    while agent._reporter.sent < 3 and time.monotonic() < deadline:
        agent.meter.begin(two_sequence_layout(step=agent._reporter.sent))
        agent.end_step()
        time.sleep(0.01)
    assert agent._reporter.sent >= 3
assert "torch" not in sys.modules, "the agent loaded torch"
"""


def test_measuring_and_reporting_need_no_torch() -> None:
    """What never loads torch cannot make a collective or synchronise a device."""
    with ToldBalancer(acknowledge) as balancer:
        done = subprocess.run(
            [sys.executable, "-c", FORGE, balancer.url],
            cwd=ROOT,
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def kept_bytes() -> int:
    """Return bytes traced, without the garbage of connections that failed."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.fault
def test_memory_is_flat_while_the_balancer_is_dead() -> None:
    """A balancer that is away for hours costs the ring and no more; what is lost is counted."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        quick: dict[str, Any] = {"interval_s": 0.01, "first_retry_s": 0.01, "max_retry_s": 0.02}
        own = AgentSettings(balancer=url, job="job", ring_steps=64, **quick)
        agent = Agent(own)
        layout = two_sequence_layout(step=0)
        train_many(agent.meter, layout, 0, 1000)
        assert eventually(lambda: agent._reporter._backoff.failures >= 5)
        tracemalloc.start()
        try:
            train_many(agent.meter, layout, 1000, 1000)
            before = kept_bytes()
            train_many(agent.meter, layout, 2000, 4000)
            after = kept_bytes()
        finally:
            tracemalloc.stop()
        reporter = agent._reporter
        assert reporter._backoff.open
        assert reporter.dropped >= 6000 - 64 - 256
        assert reporter.unsent_steps <= 64 + 256
        agent.close()
    # Four thousand steps, kept, would take megabytes.
    assert after - before < 200_000


def train_many(meter: StepMeter, layout: BatchLayout, first: int, count: int) -> None:
    for step in range(first, first + count):
        meter.begin(replace(layout, step=step))
        note(meter)
        meter.end_step()


@pytest.mark.fault
def test_a_resolver_that_hangs_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline holds for names too: the agent goes on, and its end does not wait."""
    asked, over = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        asked.set()
        over.wait(60)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    quick: dict[str, Any] = {"connect_timeout_s": 0.05, "first_retry_s": 0.01, "max_retry_s": 0.05}
    own = AgentSettings(balancer="http://name.invalid:8765", job="job", interval_s=0.01, **quick)
    agent = Agent(own)
    assert asked.wait(60)
    assert eventually(lambda: agent._reporter._backoff.failures >= 3)
    lookups = [thread for thread in threading.enumerate() if thread.name == "libra-name"]
    assert len(lookups) == 1
    assert agent._background is not None
    thread = agent._background._thread
    agent.close()
    assert not thread.is_alive()
    assert not over.is_set()
    over.set()


@pytest.mark.fault
def test_no_fault_of_the_agent_reaches_training(caplog: pytest.LogCaptureFixture) -> None:
    """Whichever of its own calls fails, training sees nothing, and the log has one trace."""
    caplog.set_level(logging.WARNING)
    with ToldBalancer(acknowledge) as balancer:
        own = AgentSettings(balancer=balancer.url, job="job", interval_s=0.01)
        injected = 0
        for number in range(10_000):
            caplog.clear()
            injection = Injection(number)
            agent = Agent(own)
            watch_a_step(agent, injection)
            agent.close()
            if not injection.place:
                break
            injected += 1
            faults = [line for line in caplog.messages if "off from now on" in line]
            # Arithmetic that fails costs the calls that it was done for, and they are counted.
            assert len(faults) == (0 if agent.meter.dropped else 1), injection.place
            assert agent.meter.dropped or not agent.enabled
    assert injected >= 30
