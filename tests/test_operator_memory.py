"""Steps of changing shapes leave nothing behind.

A leak of one step's smallest tensor shows: live tensors are counted one by one, and what only C++
holds is seen by the process's size.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from libra.attention.pooled import PooledAttention
from libra.attention.verify import VerifySettings
from tests.attention_case import Mesh, mesh_pools
from tests.reference import long_tailed_lengths
from tests.small_case import attend, small_case, small_layout
from tests.workers import RankWorkers

WorkerRanks = Callable[[int], RankWorkers]

MESH = Mesh(ranks=4, cp=2, pool=2)
# Rounds of as many different steps; the first rounds fill caches and the workspace.
ROUND, WARM_UP = 10, 3
# The allocator's own: freed pieces between used ones. A leak of one [t, H, D] per step is three
# times as much in sixty steps already.
RSS_SLACK_BYTES = 16 * 2**20
MAX_TOKENS = 1024


def _live_bytes() -> int:
    gc.collect()
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in gc.get_objects()
        # Not the fake ones of torch.compile, which other tests' ranks may still hold.
        if type(x) in (torch.Tensor, torch.nn.Parameter)
    }
    return sum(storages.values())


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _train(rank: int, rounds: int, resend: bool) -> tuple[list[int], list[int], int]:
    """Return live and resident bytes after each round, and steps in which tiles moved."""
    pools = mesh_pools(MESH)
    attention = PooledAttention(
        pools, resend_in_backward=resend, verify=VerifySettings(steps=ROUND)
    )
    live, resident, moved = [], [], 0
    for number in range(rounds):
        rng = np.random.default_rng(0)
        for index in range(ROUND):
            moved += _step(attention, rng, number * ROUND + index, seed=index)
        live.append(_live_bytes())
        resident.append(_resident_bytes())
    return live, resident, moved


def _step(attention: PooledAttention, rng: np.random.Generator, step: int, seed: int) -> bool:
    tokens = int(rng.integers(MAX_TOKENS // 4, MAX_TOKENS))
    cell = [long_tailed_lengths(rng, tokens, median) for median in (tokens, 12)]
    layout = small_layout(attention.pools, cell, heads=(4, 2), tokens=tokens, step=step)
    attend(attention, small_case(layout, attention.pools, seed=seed, dtype=torch.float32))
    return layout.plan.moved > 0


def _expect_flat(
    workers: RankWorkers, rounds: int, resend: bool, timeout_s: float, warm_up: int = WARM_UP
) -> None:
    for live, resident, moved in workers.run(_train, rounds, resend, timeout_s=timeout_s):
        assert moved > rounds * ROUND // 2
        # The least of some rounds: gloo's thread may hold the last exchange's tensors a little
        # longer. A few bytes of each layout's comparison are kept for some time.
        assert min(live[-3:]) <= min(live[warm_up : warm_up + 3]) + 4096, live
        assert resident[-1] - resident[warm_up] < RSS_SLACK_BYTES, resident


@pytest.mark.dist
@pytest.mark.parametrize("resend", [False, True])
def test_sixty_steps_leave_nothing_behind(worker_ranks: WorkerRanks, resend: bool) -> None:
    """Neither tensors nor the process grow after the first thirty, compared ones included."""
    _expect_flat(worker_ranks(4), WARM_UP + 1 + 60 // ROUND, resend, 100.0)


@pytest.mark.dist
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_thousand_steps_leave_nothing_behind(worker_ranks: WorkerRanks) -> None:
    """The same for as long as a small leak needs to show, after malloc's heaps have settled."""
    _expect_flat(worker_ranks(4), 2000 // ROUND, False, 1100.0, warm_up=40)
