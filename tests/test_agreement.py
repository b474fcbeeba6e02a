"""All ranks get one policy for a step, whichever of them proposes what, or none gets any."""

import functools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from libra.agent.agreement import agree, confirm
from libra.attention.store import default_store
from libra.balancer.policy import HOME_POLICY, Policy
from tests.ranks import run_ranks
from tests.stores import WatchedStore, connect, serve


def policy(version: int) -> Policy:
    return Policy(version=version, pooling=True, reason=f"proposal {version}")


@pytest.fixture
def server() -> Any:
    """A TCPStore's server; ranks connect to its port."""
    return serve()


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


def test_a_step_never_asks_for_the_stores_repr(server: Any) -> None:
    """A TCPStore's asks a name server, which may take seconds; an error names the store too."""

    class Unnamed(WatchedStore):
        def __repr__(self) -> str:
            raise AssertionError

    store = Unnamed(server, lambda call: None)

    assert decide(store, step=0, version=1).version == 1
    server.set("libra/train/step/1", '[0,1,{"policy":"0123456789abcdef"}]')
    with pytest.raises(TimeoutError, match="in Unnamed"):
        agree(store, attempt=0, step=1, propose=lambda: policy(1), timeout_s=0.2)


def test_attempts_and_steps_are_decided_apart(server: Any) -> None:
    """A restarted job is not bound to what the last attempt decided, nor a step to another."""
    decide(server, step=3, version=1)

    assert decide(server, step=4, version=2).version == 2
    assert decide(server, step=3, version=3, attempt=1).version == 3


def test_the_home_policy_is_agreed_on_too(server: Any) -> None:
    """A rank that has a policy already follows one that decided without."""
    agree(server, attempt=0, step=0, propose=lambda: HOME_POLICY, timeout_s=60.0)

    assert decide(connect(server.port), step=0, version=9) == HOME_POLICY


def test_a_decision_without_its_body_times_out(server: Any) -> None:
    """The error names the step and the store; the rank never falls back on its own policy."""
    server.set("libra/train/step/12", '[0,12,{"policy":"0123456789abcdef"}]')

    with pytest.raises(TimeoutError, match=r"0\.2 s for the policy of step 12.*TCPStore"):
        agree(server, attempt=0, step=12, propose=lambda: policy(1), timeout_s=0.2)


def test_a_false_body_is_refused(server: Any) -> None:
    """A body that does not have the checksum it is stored under is never used."""
    decide(server, step=0, version=1)
    server.set("libra/train/step/5", '[0,5,{"policy":"0123456789abcdef"}]')
    body = server.get(f"libra/train/body/0/0/{policy(1).checksum}").decode()
    server.set("libra/train/body/0/0/0123456789abcdef", body)

    with pytest.raises(RuntimeError, match="has checksum") as caught:
        decide(server, step=5, version=2)

    assert "policy of step 5" in caught.value.__notes__[0]


def _serve(ports: Any, done: Any) -> None:
    store = serve()
    ports.put(store.port)
    done.wait(60)


@pytest.mark.fault
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_a_store_host_that_freezes_or_dies_times_out(fault: signal.Signals) -> None:
    """Whether the store's host froze, with its connection up, or is gone: each rank stops."""
    context = multiprocessing.get_context("spawn")
    ports, done = context.Queue(), context.Event()
    host = context.Process(target=_serve, args=(ports, done))
    host.start()
    try:
        port = ports.get(timeout=60)
        stores = [connect(port) for _ in range(4)]
        assert decide(stores[0], step=0, version=1).version == 1
        pid = host.pid
        assert pid is not None
        # Between two calls of the second rank's decision.
        watched = WatchedStore(stores[1], lambda call: _end(pid, call, fault))

        with pytest.raises(TimeoutError, match="step 1"):
            agree(watched, attempt=0, step=1, propose=lambda: policy(1), timeout_s=0.5)
        with pytest.raises(TimeoutError, match="step 1"):
            agree(stores[2], attempt=0, step=1, propose=lambda: policy(1), timeout_s=0.5)
        with pytest.raises(TimeoutError, match="epoch/0"):
            confirm(stores[3], attempt=0, name="epoch/0", value="", timeout_s=0.5)
    finally:
        host.kill()
        host.join()


def _end(pid: int, call: str, fault: signal.Signals) -> None:
    if call == "compare_set":
        os.kill(pid, fault)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)


def test_without_a_group_the_message_says_what_to_do() -> None:
    """There is no default store before there is a default group."""
    with pytest.raises(RuntimeError, match="init_process_group first, or pass a store"):
        default_store()


def test_a_rank_with_another_value_is_told_both(server: Any) -> None:
    """The first rank's value counts; one that differs hears of both, and the same passes."""
    confirm(server, attempt=0, name="epoch/0", value="aa", timeout_s=60.0)
    confirm(connect(server.port), attempt=0, name="epoch/0", value="aa", timeout_s=60.0)
    confirm(server, attempt=0, name="epoch/1", value="bb", timeout_s=60.0)

    with pytest.raises(RuntimeError, match=r"epoch/0: this rank has bb.*first one aa"):
        confirm(server, attempt=0, name="epoch/0", value="bb", timeout_s=60.0)

    confirm(server, attempt=1, name="epoch/0", value="bb", timeout_s=60.0)


def test_of_racing_values_one_stands(server: Any) -> None:
    """Of ranks that write different values at once all but those with the first's are told."""
    ranks = 4
    barrier = threading.Barrier(ranks)

    def run(rank: int) -> list[bool]:
        store, passed = connect(server.port), []
        for epoch in range(10):
            barrier.wait(60)
            try:
                confirm(store, attempt=0, name=str(epoch), value=str(rank), timeout_s=60.0)
                passed.append(True)
            except RuntimeError:
                passed.append(False)
        return passed

    with ThreadPoolExecutor(ranks) as pool:
        passed = list(pool.map(run, range(ranks)))

    assert [sum(own) for own in zip(*passed, strict=True)] == [1] * 10
