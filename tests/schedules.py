"""Lives of small jobs, drawn by seed: ranks crash, learn of policies late, restart in other sizes.

A schedule says all that happens to a job. ``tests/schedule_rank.py`` is a rank that lives by it,
on threads (``tests/turns.py``) or in processes (``tests/schedule_processes.py``); what the ranks
tell is judged in ``tests/verdict.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

import numpy as np

from libra.attention.shape import PoolShape
from libra.balancer.policy import Policy
from tests.coordinates import COST

TOKENS, GLOBAL_BATCH, SEED = 64, 12, 7
# 32 sequences: two steps an epoch, and some that fill none. A job sees four epochs.
LENGTHS = np.random.default_rng(5).lognormal(2.8, 1.0, 110).astype(np.int64) % 90 + 1
STEPS = 7

CrashKind = Literal["propose", "store", "decided", "micro_batch", "checkpoint"]
CRASHES = get_args(CrashKind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crash:
    """One rank stops in ``step``, or later where the step has no such point.

    ``nth`` counts the store's calls for the step, or its micro-batches, or the two points of a
    checkpoint: before all ranks have saved, and before it counts.
    """

    rank: int
    kind: CrashKind
    step: int
    nth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of the job.

    Attributes:
        number: the restart count.
        shape: its mesh.
        crashes: of its ranks.
        known: for each rank, the policies that it knows of and from which step on.
        ahead: steps that each rank's loader is ahead.
        straggler: whether a rank of the attempt before still runs, and asks.
    """

    number: int
    shape: PoolShape
    crashes: tuple[Crash, ...]
    known: tuple[tuple[tuple[int, Policy], ...], ...]
    ahead: tuple[int, ...]
    straggler: bool

    def policy(self, rank: int, step: int) -> Policy:
        return [policy for since, policy in self.known[rank] if since <= step][-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    seed: int
    kept_steps: int
    checkpoint_every: int
    attempts: tuple[Attempt, ...]


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed; its last attempt has no crash."""
    random = Random(seed)
    kept_steps = random.randint(2, 4)
    attempts: list[Attempt] = []
    number = 0
    for last in [False] * random.randint(1, 3) + [True]:
        dp = random.randint(2, 4)
        size = random.randint(1, dp)
        largest = random.choice((0, 2 * size)) if 2 * size <= dp else 0
        shape = PoolShape(dp=dp, cp=1, sequences_per_pool=size, largest_pool=largest)
        attempts.append(
            Attempt(
                number=number,
                shape=shape,
                crashes=() if last else tuple(_crashes(random, dp)),
                known=tuple(_known(random, number, dp)),
                ahead=tuple(random.randrange(kept_steps) for _ in range(dp)),
                straggler=random.random() < 0.5,
            )
        )
        number += random.randint(1, 2)
    return Schedule(
        seed=seed,
        kept_steps=kept_steps,
        checkpoint_every=random.randint(1, 3),
        attempts=tuple(attempts),
    )


def _crashes(random: Random, dp: int) -> Iterator[Crash]:
    for rank in random.sample(range(dp), random.choice((1, 1, 1, 2))):
        yield Crash(
            rank=rank,
            kind=(kind := random.choice(CRASHES)),
            step=random.randrange(STEPS - 1),
            nth=random.randrange({"store": 8, "micro_batch": 3, "checkpoint": 2}.get(kind, 1)),
        )


def _known(random: Random, attempt: int, dp: int) -> Iterator[tuple[tuple[int, Policy], ...]]:
    """Draw what each rank knows: the balancer's policies, each late by some steps, or its own."""
    published = [(0, _policy(random, attempt, 0, dp))]
    for version in range(1, random.randint(2, 5)):
        published.append((random.randrange(STEPS), _policy(random, attempt, version, dp)))
    published.sort(key=lambda known: known[0])
    for rank in range(dp):
        known = [(since + random.randrange(4) * (since > 0), policy) for since, policy in published]
        if random.random() < 0.2:
            own = _policy(random, attempt, 100 + rank, dp)
            known.append((random.randrange(STEPS), own))
        # At the start of an attempt a rank may know nothing yet, or what it knew before.
        known.insert(0, (-1, _policy(random, attempt, 200 + random.randrange(2) * rank, dp)))
        yield tuple(sorted(known, key=lambda known: known[0]))


def _policy(random: Random, attempt: int, version: int, dp: int) -> Policy:
    speeds = [random.choice((300, 1000, 1000)) for _ in range(random.choice((0, dp, dp, dp + 1)))]
    tiles, queries, keys, pairs, blocks, longs = COST.coefficients
    return Policy(
        version=1000 * attempt + version,
        pooling=random.random() < 0.7,
        cost=(tiles, queries, keys, pairs // random.randint(1, 4), blocks, longs),
        cost_scale_bits=COST.scale_bits,
        speeds_permille=tuple(speeds),
    )
