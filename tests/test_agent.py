"""The agent is off unless asked, and however the balancer behaves training does not notice."""

import dataclasses
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from libra.agent.agent import Agent
from libra.agent.settings import AgentSettings, settings_from_env
from libra.attention.observer import Observer
from libra.balancer.policy import HOME_POLICY, Policy, encode_policy
from libra.balancer.wire import Coordinates
from tests.balancers import (
    NO_JOB,
    TRICKLE,
    Reply,
    Request,
    ToldBalancer,
    acknowledge,
    by_method,
    delivered,
    eventually,
    no_thread_left,
)
from tests.layouts import two_sequence_layout
from tests.test_meter import note

POLICY = Policy(version=1, pooling=True)
OFFER = Reply(status=200, headers={"ETag": f'"{POLICY.checksum}"'}, body=encode_policy(POLICY))


class Attention:
    """As much of the operator as the agent touches."""

    observer: Observer | None = None


class Sampler:
    """As much of the sampler as the agent touches."""

    def __init__(self, pools: Any = None) -> None:
        self.policy_source: Callable[[], Policy] = lambda: HOME_POLICY
        self.pools = pools


def environment(url: str, **more: str) -> dict[str, str]:
    return {"LIBRA_BALANCER": url, "LIBRA_JOB": "job", **more}


# Deadlines that no test meets, however slow the machine.
PATIENT = {"connect_timeout_s": 60.0, "timeout_s": 60.0, "close_timeout_s": 60.0}
# Waits that no test could miss, and the end's own bound as it is in a job.
STUBBORN = {
    "connect_timeout_s": 600.0,
    "timeout_s": 600.0,
    "poll_wait_s": 600.0,
    "close_timeout_s": 1.0,
}


def settings(url: str, **changes: Any) -> AgentSettings:
    """Return settings with a quick pace and patient deadlines."""
    quick = {"interval_s": 0.02, "first_retry_s": 0.02, "max_retry_s": 0.1}
    return AgentSettings(balancer=url, job="job", **{**quick, **PATIENT, **changes})


def reported_steps(balancer: ToldBalancer) -> list[int]:
    return [step.step for report in delivered(balancer.requests) for step in report.steps]


def train(agent: Agent, steps: int) -> None:
    """Do what a training loop does to the agent."""
    layout = two_sequence_layout(step=0)
    for step in range(steps):
        agent.meter.begin(dataclasses.replace(layout, step=step))
        note(agent.meter)
        agent.end_step()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LIBRA_BALANCER": ""},
        environment("http://127.0.0.1:1", LIBRA_AGENT="off"),
    ],
    ids=["absent", "empty", "switched-off"],
)
def test_off_does_nothing(environ: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Without a balancer or with LIBRA_AGENT=off there is no thread, no hook and no word."""
    before = set(threading.enumerate())
    agent = Agent.from_env(environ)
    attention, sampler = Attention(), Sampler()
    source = sampler.policy_source
    agent.attach(attention, sampler)

    assert not agent.enabled
    assert not set(threading.enumerate()) - before
    assert attention.observer is None
    assert sampler.policy_source is source
    assert agent.policy is HOME_POLICY
    assert agent.end_step() is None
    agent.close()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (environment("127.0.0.1:8765"), "balancer='127.0.0.1:8765': must be like http://"),
        (environment("http://"), "must be like http://"),
        (environment("http://host:port"), "must be like http://"),
        (environment("ftp://host"), "must be like http://"),
        (environment("http://h", LIBRA_JOB="a b"), "job='a b': must be 1 to 128 letters"),
        (environment("http://h", LIBRA_ATTEMPT="two"), "LIBRA_ATTEMPT='two': must be an integer"),
        (environment("http://h", RANK="4", WORLD_SIZE="4"), "rank=4: must be in 0..3"),
        (environment("http://h", LIBRA_PP_RANK="one"), "LIBRA_PP_RANK='one': must be an integer"),
        (environment("http://h", LIBRA_PP_RANK="1"), "pp_rank=1: must be in 0..0"),
        ({"LIBRA_BALANCER": "http://h"}, "LIBRA_JOB is not set"),
        (
            {"LIBRA_BALANCER": "http://h", "TORCHELASTIC_RUN_ID": "none"},
            "LIBRA_JOB is not set",
        ),
    ],
)
def test_a_malformed_environment_switches_off(
    environ: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A typing error costs the agent, never the job; the log names variable and value, once."""
    agent = Agent.from_env(environ)

    assert not agent.enabled
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_the_environment_alone_switches_on() -> None:
    """Two variables in the job's environment are enough for its steps to be reported."""
    with ToldBalancer(by_method(post=Reply(), get=NO_JOB)) as balancer:
        agent = Agent.from_env(environment(balancer.url))
        train(agent, steps=1)

        assert eventually(lambda: reported_steps(balancer) == [0])
        agent.close()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LIBRA_JOB": "a", "SLURM_JOB_ID": "7", "LIBRA_ATTEMPT": "2"}, ("a", 2, 0, 1)),
        (
            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"},
            ("7", 0, 3, 8),
        ),
        (
            {
                "TORCHELASTIC_RUN_ID": "run",
                "TORCHELASTIC_RESTART_COUNT": "1",
                "RANK": "1",
                "WORLD_SIZE": "2",
                "SLURM_PROCID": "0",
            },
            ("run", 1, 1, 2),
        ),
    ],
    ids=["own", "slurm", "torchrun"],
)
def test_the_launcher_names_the_job(
    environ: dict[str, str], expected: tuple[str, int, int, int]
) -> None:
    """Libra's own variables come first, then torchrun's and Slurm's."""
    found = settings_from_env({"LIBRA_BALANCER": "http://h:1", **environ})

    assert found is not None
    assert (found.job, found.attempt, found.rank, found.world_size) == expected


def test_timings_go_out_and_policies_come_in() -> None:
    """After attach the operator is watched, the sampler fed, and the rank's place reported."""
    with ToldBalancer(by_method(post=Reply(), get=OFFER)) as balancer, no_thread_left():
        attention = Attention()
        sampler = Sampler(SimpleNamespace(dp_rank=3, cp_rank=1, pool=1))
        with Agent(settings(balancer.url, world_size=4, pp_rank=2)) as agent:
            agent.attach(attention, sampler)
            assert attention.observer is agent.meter
            train(agent, steps=40)

            assert eventually(lambda: sampler.policy_source() == POLICY)
        reports = delivered(balancer.requests)

    assert [step.step for report in reports for step in report.steps] == list(range(40))
    measured = sum(kind.sums[0] for report in reports for kind in report.moments)
    assert measured + reports[-1].set_aside == 40
    assert reports[-1].coordinates == Coordinates(dp=3, cp=1, pool=1, pp=2)


def test_acknowledgements_take_the_place_of_polls() -> None:
    """While reports are acknowledged a policy is asked for when they tell of another one."""
    published = threading.Event()

    def answer(request: Request) -> Reply:
        policy = POLICY if published.is_set() else HOME_POLICY
        if request.method == "POST":
            return acknowledge(request, policy=f'"{policy.checksum}"')
        return OFFER if published.is_set() else Reply(status=304, body=b"")

    with ToldBalancer(answer) as balancer, Agent(settings(balancer.url)) as agent:
        train(agent, steps=1)
        assert eventually(lambda: agent._reporter.sent >= 1)
        # One poll may be under way, or due, at the first acknowledgement.
        asked = len(balancer.asked("GET"))
        for _ in range(20):
            sent = agent._reporter.sent
            train(agent, steps=1)
            assert eventually(lambda: agent._reporter.sent > sent)  # noqa: B023
        assert len(balancer.asked("GET")) <= asked + 1
        published.set()
        train(agent, steps=1)
        assert eventually(lambda: agent.policy == POLICY)
        assert balancer.asked("GET")[-1].path == "/api/v1/jobs/job/policy"


@pytest.fixture
def dead() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address whose backlog is full: connections hang."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def endure(url: str) -> None:
    """Train beside a bad balancer; steps stay cheap, close is quick, no thread is left."""
    with no_thread_left():
        agent = Agent(settings(url, **STUBBORN))
        began_s = time.monotonic()
        train(agent, steps=100)
        trained_s = time.monotonic() - began_s
        eventually(lambda: agent._reporter._backoff.failures > 1, timeout_s=0.3)
        began_s = time.monotonic()
        agent.close()

        closed_s = time.monotonic() - began_s

        # Generous: 100 steps take milliseconds and the end a second, a wait for the balancer 600.
        assert trained_s < 60
        assert closed_s < 60
        assert agent.policy is HOME_POLICY


@pytest.mark.fault
@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500),
        Reply(status=429, headers={"Retry-After": "3600"}),
        Reply(status=422),
        Reply(status=200, body=b"<html>"),
        Reply(raw=b""),
        Reply(raw=b"garbage\r\n\r\n"),
        Reply(hang=True),
        TRICKLE,
    ],
    ids=["500", "429", "422", "html", "closed", "garbage", "hung", "trickle"],
)
def test_a_bad_balancer_costs_nothing(reply: Reply) -> None:
    """Whatever it answers, or not, no step waits, nothing raises and close is quick."""
    with ToldBalancer(lambda _: reply) as balancer:
        endure(balancer.url)


@pytest.mark.fault
def test_a_dead_balancer_costs_nothing(dead: str, deaf: str) -> None:
    """Refused connections and connections that hang are endured alike."""
    endure(dead)
    endure(deaf)


def test_a_step_left_open_is_not_reported() -> None:
    """A job that ends in the middle of a step does not pass half of it for the whole."""
    with (
        ToldBalancer(by_method(post=Reply(), get=NO_JOB)) as balancer,
        Agent(settings(balancer.url)) as agent,
    ):
        train(agent, steps=1)
        agent.meter.begin(two_sequence_layout(step=1))

    assert reported_steps(balancer) == [0]


def test_closing_twice_is_harmless(dead: str) -> None:
    """Close may be called by the script and again at exit; afterwards nothing holds the agent."""
    agent = Agent(settings(dead))
    agent.close()
    agent.close()

    assert agent.end_step() is None
    assert not agent.enabled
    reference = weakref.ref(agent)
    del agent

    def gone() -> bool:
        gc.collect()
        return reference() is None

    assert eventually(gone)


@pytest.mark.fault
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_is_off() -> None:
    """A loader worker forked from a rank sends nothing, closes nothing, and its parent goes on."""
    with ToldBalancer(by_method(post=Reply(), get=OFFER)) as balancer, no_thread_left():
        agent = Agent(settings(balancer.url))
        assert eventually(lambda: agent.policy == POLICY)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                enabled = agent.enabled
                train(agent, steps=5)
                agent.close()
                code = 2 if enabled or agent._reporter.unsent_steps else 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

        train(agent, steps=2)
        assert eventually(lambda: reported_steps(balancer) == [0, 1])
        agent.close()

    assert reported_steps(balancer) == [0, 1]


# Trains a step, waits for its input and ends.
SCRIPT = """
import dataclasses
import json
import sys
from libra.agent.agent import Agent
from libra.agent.settings import settings_from_env
from tests.layouts import two_sequence_layout
settings = settings_from_env({"LIBRA_BALANCER": sys.argv[1], "LIBRA_JOB": "job"})
agent = Agent(dataclasses.replace(settings, **json.loads(sys.argv[2])))
agent.meter.begin(two_sequence_layout(step=0))
agent.end_step()
assert agent.enabled
sys.stdin.readline()
if len(sys.argv) > 3:
    raise RuntimeError("training failed")
"""


def script(url: str, deadlines: dict[str, float], *more: str) -> list[str]:
    """Return the command that runs the script."""
    return [sys.executable, "-c", SCRIPT, url, json.dumps(deadlines), *more]


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "raises"])
def test_the_end_of_the_process_sends_what_is_left(fails: bool) -> None:
    """A script that never calls close still reports its last step, also when it raises."""
    with ToldBalancer(by_method(post=Reply(), get=NO_JOB)) as balancer:
        done = subprocess.run(
            script(balancer.url, PATIENT, *(["fail"] if fails else [])),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    assert done.returncode == int(fails)
    assert ("training failed" in done.stderr) == fails
    assert fails or done.stderr == ""
    assert reported_steps(balancer) == [0]


@pytest.mark.fault
def test_a_hung_balancer_does_not_hold_up_the_end() -> None:
    """The process ends by itself soon after its script, not at the report's or poll's deadline."""
    with (
        ToldBalancer(lambda _: Reply(hang=True)) as balancer,
        subprocess.Popen(
            script(balancer.url, STUBBORN),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert eventually(lambda: len(balancer.asked("POST")) > 0)
            # It takes a second; waiting for the balancer would take ten minutes.
            _, errors = process.communicate("\n", timeout=60)
        finally:
            process.kill()

    assert process.returncode == 0
    assert "1 step(s) not reported" in errors
