"""A rank that fails inside attention is named to every other rank of its pool, in time.

Start here when touching the roll call: a failure prints what each rank was told.
"""

import gc
import re
import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from libra.attention import failure
from libra.attention.activity import COMPUTING, doing
from libra.attention.failure import ExchangeError, PoolError, RollCall, exchanging
from tests.faults import Fault, run_with_fault

pytestmark = pytest.mark.fault

# What the others are told of a rank that can still speak, and of one that cannot.
NAMED = {
    "raise": r"rank {} raised ArithmeticError: the kernel is broken",
    "kill": r"no answer from rank {} \[",
    "stop": r"no answer from rank {} \[",
    "refuse": r"while others wait, rank {} refused its input \(q has shape \(1, 4, 32\)",
    "absent": r"while others wait, rank {} is outside attention \[",
}


FAULTS = [
    Fault(kind="raise", victim=3),
    Fault(kind="raise", victim=0, backward=True),
    Fault(kind="kill", victim=3),
    Fault(kind="refuse", victim=1),
    Fault(kind="absent", victim=1),
    Fault(kind="raise", victim=1, backward=True, query_heads=3),
    Fault(kind="stop", victim=2, backward=True, query_heads=3),
    Fault(kind="kill", victim=2, elastic=True),
]
MORE_FAULTS = [
    Fault(kind="kill", victim=2, backward=True),
    Fault(kind="kill", victim=0, query_heads=3),
    Fault(kind="stop", victim=3),
    Fault(kind="stop", victim=0, backward=True),
    Fault(kind="raise", victim=2, query_heads=3),
    Fault(kind="absent", victim=0, query_heads=3),
    Fault(kind="raise", victim=3, backward=True, elastic=True),
    Fault(kind="kill", victim=1, query_heads=3, elastic=True),
]


def _expect_named(fault: Fault) -> None:
    told = run_with_fault(fault)
    others = [own for rank, own in told.items() if rank != fault.victim]
    assert len(others) == 3
    for own in others:
        assert own.moved
        assert own.error == "PoolError"
        assert re.search(NAMED[fault.kind].format(fault.victim), own.message), told
    if fault.kind == "raise":
        assert told[fault.victim].error == "PoolError"
    if fault.kind == "refuse":
        assert told[fault.victim].error == "ValueError"


@pytest.mark.dist
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_every_rank_of_the_pool_is_told_who_failed(fault: Fault) -> None:
    """Ranks that talk to it, and ranks that do not, raise ``PoolError`` with its name."""
    _expect_named(fault)


@pytest.mark.dist
@pytest.mark.soak
@pytest.mark.parametrize("fault", MORE_FAULTS, ids=str)
def test_every_rank_is_told_of_more_faults(fault: Fault) -> None:
    """The same for other victims, directions and meshes."""
    _expect_named(fault)


@pytest.mark.dist
def test_a_store_that_dies_with_its_rank_names_that_rank() -> None:
    """Rank 0 serves the store: nobody can be asked, and the message says whose death that is."""
    fault = Fault(kind="kill", victim=0, tcp=True)
    told = run_with_fault(fault)

    for rank in (1, 2, 3):
        assert told[rank].error == "PoolError"
        assert "the rank that hosts it may have died, rank 0 as a rule" in told[rank].message, told


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks look for a roll call all the time, and nobody waits long for answers."""
    monkeypatch.setattr(failure, "_LOOK_S", 0.01)
    monkeypatch.setattr(failure, "_ANSWER_S", 2.0)


def _roll_calls(store: HashStore, ranks: int, name: str = "a") -> list[RollCall]:
    """Return those of the first ranks of a pool of three, all in this process."""
    return [RollCall(store=store, name=name, ranks=(0, 1, 2), rank=rank) for rank in range(ranks)]


def _broken(roll_call: RollCall) -> str:
    """Return what a rank is told whose exchange fails."""
    with pytest.raises(PoolError) as raised, roll_call.guard(), exchanging():
        raise RuntimeError("connection closed")
    return str(raised.value)


@pytest.mark.usefixtures("quick")
def test_ranks_that_compute_answer_the_roll() -> None:
    """Only the rank that is gone is named, not one that is busy; and it is so for all."""
    first, second = _roll_calls(HashStore(), 2)
    told = _broken(first)

    assert "no answer from rank 2 [" in told
    assert told.replace("on rank 0", "on rank 1") == _broken(second)


@pytest.mark.usefixtures("quick")
def test_a_rank_that_answers_but_does_not_wait_is_named() -> None:
    """Where nobody is gone, those are late whom the others wait for."""
    roll_calls = _roll_calls(HashStore(), 3)
    with doing("is elsewhere", then=COMPUTING):
        # Their threads answer what this process does, which is one rank as a rule.
        error = roll_calls[0].explain(ExchangeError("timed out"))

    assert "while others wait, rank 1 is elsewhere, rank 2 is elsewhere [timed out]" in str(error)


@pytest.mark.usefixtures("quick")
def test_what_a_rank_raised_itself_is_the_verdict_for_all() -> None:
    """The first to know is believed, whatever the others' exchanges look like after."""
    first, second, third = _roll_calls(HashStore(), 3)
    with pytest.raises(PoolError, match="rank 1 raised KeyError: 'x'") as raised, second.guard():
        raise KeyError("x")

    assert isinstance(raised.value.__cause__, KeyError)
    assert all("rank 1 raised KeyError: 'x'" in _broken(other) for other in (first, third))


@pytest.mark.usefixtures("quick")
def test_another_pools_failure_is_not_this_ones() -> None:
    """What pools of an earlier attempt, or of another mesh, left in the store is not read."""
    store = HashStore()
    _broken(_roll_calls(store, 1)[0])
    later = _roll_calls(store, 2, name="b")

    assert "no answer from rank 2 [" in _broken(later[0])


@pytest.mark.usefixtures("quick")
def test_a_rank_that_waits_in_another_of_its_pools_says_so() -> None:
    """It is not where this pool waits for it, and the network is not to blame."""
    store = HashStore()
    roll_calls = _roll_calls(store, 3)
    larger = RollCall(store=store, name="larger", ranks=(0, 1, 2, 3), rank=1)
    with larger.guard(), exchanging():
        error = roll_calls[0].explain(ExchangeError("timed out"))

    assert "rank 1 waits in an exchange of another pool (ranks 0, 1, 2, 3)" in str(error)


@pytest.mark.usefixtures("quick")
def test_a_rank_tells_its_other_pools_why_it_stopped() -> None:
    """Who failed first is named beyond the pool that it failed in."""
    store = HashStore()
    roll_calls = _roll_calls(store, 3)
    larger = RollCall(store=store, name="larger", ranks=(0, 1, 2, 3), rank=1)
    store.set("libra/attention/pool/larger/failed", "no answer from rank 3")
    told = _broken(larger)
    error = roll_calls[0].explain(ExchangeError("timed out"))

    assert f"rank 1 stopped ({told})" in str(error)
    assert "no answer from rank 3" in str(error)


@pytest.mark.usefixtures("quick")
def test_nobody_answers_for_a_pool_that_is_gone() -> None:
    """The thread ends with the object: jobs that make pools anew do not pile threads up."""
    before = set(threading.enumerate())
    roll_calls = _roll_calls(HashStore(), 3)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 3
    del roll_calls
    gc.collect()
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()


@pytest.mark.usefixtures("quick")
def test_a_rank_answers_while_it_waits_for_the_store() -> None:
    """Another thread's wait for a key that never comes does not make its rank look dead."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clients = [TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2)]
    calls = [
        RollCall(store=store, name="a", ranks=(0, 1, 2), rank=rank)
        for rank, store in enumerate(clients)
    ]
    waiting = threading.Thread(target=clients[1].wait, args=(["never"], timedelta(seconds=60)))
    waiting.start()
    told = _broken(calls[0])
    server.set("never", "")
    waiting.join(10.0)

    assert "no answer from rank 2 [" in told
