"""The helper itself: per-rank results, the child's own traceback, and a deadline that holds."""

import multiprocessing
import time

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException

from tests.ranks import run_ranks

pytestmark = pytest.mark.dist


def _sum_of_ranks(rank: int, offset: int) -> tuple[int, int, int]:
    value = torch.tensor(rank + offset)
    dist.all_reduce(value)
    return rank, int(value), torch.get_num_threads()


def _fail_on_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("the rank's own words")
    dist.barrier()


def _hang(rank: int) -> None:
    if rank == 0:
        time.sleep(600)


def test_results_come_back_by_rank() -> None:
    """Every rank runs in one group, on one torch thread, and its result comes back in order."""
    results = run_ranks(_sum_of_ranks, 3, 10)

    assert results == [(0, 33, 1), (1, 33, 1), (2, 33, 1)]


def test_a_failing_rank_raises_its_own_traceback() -> None:
    """The parent sees the failing rank's message and line, though its peers were waiting."""
    with pytest.raises(ProcessRaisedException, match=r"(?s)_fail_on_one.*the rank's own words"):
        run_ranks(_fail_on_one, 2)


def test_a_hung_rank_ends_at_the_deadline() -> None:
    """A rank that never ends is killed and named."""
    # Other tests' workers may stay for the whole session.
    before = set(multiprocessing.active_children())

    with pytest.raises(TimeoutError, match=r"_hang: ranks \[0(, 1)?\] did not"):
        run_ranks(_hang, 2, timeout_s=12.0)

    assert set(multiprocessing.active_children()) <= before
