"""The lasting ranks: results by rank, the culprit's own traceback, and a clean start after it."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.workers import RankError, RankWorkers

pytestmark = pytest.mark.dist

_calls: list[int] = []


@pytest.fixture
def workers() -> Iterator[RankWorkers]:
    """Two ranks of the test's own, which it may kill."""
    with RankWorkers(2) as workers:
        yield workers


def _sum_of_ranks(rank: int, offset: int) -> tuple[int, int, int]:
    value = torch.tensor(rank + offset)
    dist.all_reduce(value)
    return rank, int(value), torch.get_num_threads()


def _count_calls(rank: int) -> tuple[int, int]:
    _calls.append(rank)
    return os.getpid(), len(_calls)


def _fail_on_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("the rank's own words")
    dist.barrier()


def _die_on_one(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _hang_on_one(rank: int) -> None:
    if rank == 1:
        time.sleep(600)


def _return_a_lambda(rank: int) -> object:
    return lambda: rank


def _expect_clean_start(workers: RankWorkers) -> None:
    """Both ranks answer, and both are new: none has a call behind it."""
    results = workers.run(_count_calls)

    assert [calls for _, calls in results] == [1, 1]
    assert workers.run(_sum_of_ranks, 10) == [(0, 21, 1), (1, 21, 1)]


def test_results_come_back_by_rank(workers: RankWorkers) -> None:
    """Every rank runs in one group, on one torch thread, and its result comes back in order."""
    assert workers.run(_sum_of_ranks, 10) == [(0, 21, 1), (1, 21, 1)]
    assert workers.run(_sum_of_ranks, 20) == [(0, 41, 1), (1, 41, 1)]


def test_ranks_stay_from_call_to_call(workers: RankWorkers) -> None:
    """The next call finds the same processes with all that the last one left in them."""
    first, second = workers.run(_count_calls), workers.run(_count_calls)

    assert [pid for pid, _ in first] == [pid for pid, _ in second] == workers.pids
    assert [calls for _, calls in second] == [2, 2]


@pytest.mark.fault
def test_an_exception_names_its_rank_and_the_next_call_starts_clean(workers: RankWorkers) -> None:
    """The parent sees the failing rank's line and message, though its peer was waiting."""
    workers.run(_count_calls)

    with pytest.raises(RankError, match=r"(?s)rank 1 raised.*_fail_on_one.*the rank's own words"):
        workers.run(_fail_on_one)

    _expect_clean_start(workers)


@pytest.mark.fault
def test_a_rank_that_dies_is_named_before_its_peers(workers: RankWorkers) -> None:
    """A killed rank is the culprit, not the peer whose connection broke because of it."""
    with pytest.raises(RankError, match=r"_die_on_one: rank 1 died \(exit code -9\)"):
        workers.run(_die_on_one)

    _expect_clean_start(workers)


@pytest.mark.fault
def test_a_hung_rank_is_killed_at_the_deadline(workers: RankWorkers) -> None:
    """A rank that never answers is named, no process of it stays, and the next call works."""
    workers.run(_count_calls)
    hung = workers.pids

    with pytest.raises(TimeoutError, match=r"_hang_on_one: ranks \[(0, )?1\] did not answer"):
        workers.run(_hang_on_one, timeout_s=1.0)

    assert not {process.pid for process in multiprocessing.active_children()} & set(hung)
    _expect_clean_start(workers)


@pytest.mark.fault
def test_a_result_that_cannot_travel_is_the_ranks_failure(workers: RankWorkers) -> None:
    """What does not pickle is reported like any other exception, at once."""
    with pytest.raises(RankError, match=r"(?s)rank \d raised.*_return_a_lambda"):
        workers.run(_return_a_lambda)

    _expect_clean_start(workers)


def test_no_process_outlives_the_pool() -> None:
    """Leaving the pool ends its ranks, and leaves none that someone would have to collect."""
    with RankWorkers(2) as workers:
        workers.run(_count_calls)
        pids = workers.pids
        assert {process.pid for process in multiprocessing.active_children()} >= set(pids)

    assert not {process.pid for process in multiprocessing.active_children()} & set(pids)
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
