"""All ranks get one policy for a step, whichever of them proposes what, or none gets any."""

import functools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from libra.agent.agreement import KEPT_STEPS, agree
from libra.attention.store import default_store
from libra.balancer.policy import HOME_POLICY, Policy
from tests.ranks import run_ranks


def policy(version: int) -> Policy:
    return Policy(version=version, pooling=True, reason=f"proposal {version}")


@pytest.fixture
def server() -> Any:
    """A TCPStore's server; ranks connect to its port."""
    return serve()


def connect(port: int) -> Any:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))


def serve() -> Any:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def decide(store: Any, step: int, version: int, attempt: int = 0) -> Policy:
    return agree(store, attempt=attempt, step=step, propose=lambda: policy(version), timeout_s=60.0)


def test_racing_ranks_with_different_proposals_get_one_policy(server: Any) -> None:
    """Whoever wins a step, every rank of it leaves with the winner's policy, body and all."""
    ranks = 4
    barrier = threading.Barrier(ranks)

    def run(rank: int) -> list[Policy]:
        store = connect(server.port)
        answers = []
        for step in range(10):
            barrier.wait(60)
            answers.append(decide(store, step, version=100 * step + rank))
        return answers

    with ThreadPoolExecutor(ranks) as pool:
        answers = list(pool.map(run, range(ranks)))

    assert all(answer == answers[0] for answer in answers)
    assert [answer.version // 100 for answer in answers[0]] == list(range(10))
    assert all(answer == policy(answer.version) for answer in answers[0])


def _agree_in_group(rank: int) -> list[int]:
    versions = []
    for step in range(5):
        dist.barrier()
        chosen = agree(
            None,
            attempt=0,
            step=step,
            propose=functools.partial(policy, 10 * step + rank),
            timeout_s=60.0,
        )
        versions.append(chosen.version)
    return versions


@pytest.mark.dist
def test_processes_agree_through_the_default_group() -> None:
    """Without a store of their own, real ranks find the job's and agree in it."""
    results = run_ranks(_agree_in_group, 3)

    assert results[0] == results[1] == results[2]
    assert [version // 10 for version in results[0]] == list(range(5))


def test_a_late_rank_gets_what_was_decided(server: Any) -> None:
    """A decision stands: a newer proposal of a rank that comes later changes nothing."""
    assert decide(server, step=3, version=1).version == 1

    assert decide(connect(server.port), step=3, version=2).version == 1


def test_attempts_and_steps_are_decided_apart(server: Any) -> None:
    """A restarted job is not bound to what the last attempt decided, nor a step to another."""
    decide(server, step=3, version=1)

    assert decide(server, step=4, version=2).version == 2
    assert decide(server, step=3, version=3, attempt=1).version == 3


def test_the_home_policy_is_agreed_on_too(server: Any) -> None:
    """A rank that has a policy already follows one that decided without."""
    agree(server, attempt=0, step=0, propose=lambda: HOME_POLICY, timeout_s=60.0)

    assert decide(connect(server.port), step=0, version=9) == HOME_POLICY


def test_old_steps_are_forgotten(server: Any) -> None:
    """The store holds a bounded number of steps, however long the job runs."""
    for step in (0, 1, KEPT_STEPS):
        decide(server, step=step, version=1)

    assert not server.check(["libra/0/0"])
    assert server.check(["libra/0/1"])
    assert server.check([f"libra/0/{KEPT_STEPS}"])


def test_a_decision_without_its_body_times_out(server: Any) -> None:
    """The error names the step and the store; the rank never falls back on its own policy."""
    server.set("libra/0/12", "0123456789abcdef")

    with pytest.raises(TimeoutError, match=r"0\.2 s for the policy of step 12.*TCPStore"):
        agree(server, attempt=0, step=12, propose=lambda: policy(1), timeout_s=0.2)


def test_a_false_body_is_refused(server: Any) -> None:
    """A body that does not have the checksum it is stored under is never used."""
    decide(server, step=0, version=1)
    server.set("libra/0/5", "0123456789abcdef")
    server.set("libra/0/policy/0123456789abcdef", server.get(_body_key(1)).decode())

    with pytest.raises(RuntimeError, match="has checksum") as caught:
        decide(server, step=5, version=2)

    assert "policy of step 5" in caught.value.__notes__[0]


def _body_key(version: int) -> str:
    return f"libra/0/policy/{policy(version).checksum}"


def _serve(ports: Any, done: Any) -> None:
    store = serve()
    ports.put(store.port)
    done.wait(60)


@pytest.mark.fault
def test_a_frozen_store_host_times_out() -> None:
    """A store whose host froze, with its connection up, stops the rank at the timeout."""
    context = multiprocessing.get_context("spawn")
    ports, done = context.Queue(), context.Event()
    host = context.Process(target=_serve, args=(ports, done))
    host.start()
    try:
        store = connect(ports.get(timeout=60))
        assert decide(store, step=0, version=1).version == 1
        assert host.pid is not None
        os.kill(host.pid, signal.SIGSTOP)
        _, status = os.waitpid(host.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

        with pytest.raises(TimeoutError, match="step 1"):
            agree(store, attempt=0, step=1, propose=lambda: policy(1), timeout_s=0.5)
    finally:
        host.kill()
        host.join()


def test_without_a_group_the_message_says_what_to_do() -> None:
    """There is no default store before there is a default group."""
    with pytest.raises(RuntimeError, match="init_process_group first, or pass a store"):
        default_store()
