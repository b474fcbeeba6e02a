"""Policies that do harm: what an operator's slip or a broken balancer might put in force."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from libra.attention.cost import TileCost
from libra.attention.shape import PoolShape
from libra.balancer.policy import Policy
from tests.loop_plans import plan_step
from tests.loop_truth import Truth
from tests.loop_world import Int64

# How much longer the slowest ranks take under what counts as harmful here.
HARM = 1.15


def harmful_policy(
    rng: np.random.Generator,
    policy: Policy,
    steps: Sequence[Sequence[Int64]],
    shape: PoolShape,
    truth: Truth,
) -> Policy | None:
    """Return a policy that does harm to these steps' sequences, None where all tried do little."""
    before = price(policy, steps, shape, truth)
    for candidate in _candidates(rng, policy, shape.dp * shape.cp):
        if price(candidate, steps, shape, truth) > HARM * before:
            return candidate
    return None


def price(
    policy: Policy, steps: Sequence[Sequence[Int64]], shape: PoolShape, truth: Truth
) -> float:
    """Return the slowest ranks' true kernel seconds over steps, under a policy."""
    works = (plan_step(lengths, shape, policy) for lengths in steps)
    return float(sum(truth.expected(work).max() for work in works))


def _candidates(rng: np.random.Generator, policy: Policy, ranks: int) -> Iterator[Policy]:
    """Yield wrong speeds and absurd costs, in an order of the seed's."""
    fast = np.full(ranks, 1000)
    fast[rng.integers(ranks)] = 4000
    scattered = np.rint(1000 * np.exp(rng.uniform(-1.2, 1.2, size=ranks))).astype(int)
    per_tile = TileCost.from_seconds((1e-3, 0.0, 0.0, 0.0, 0.0, 0.0))
    base = msgspec.structs.replace(
        policy, pooling=True, author="operator", reason="forced in", speeds_permille=()
    )
    found = [
        msgspec.structs.replace(base, speeds_permille=tuple(fast.tolist())),
        msgspec.structs.replace(base, speeds_permille=tuple(scattered.tolist())),
        msgspec.structs.replace(
            base, cost=per_tile.coefficients, cost_scale_bits=per_tile.scale_bits
        ),
    ]
    first = int(rng.integers(len(found)))
    yield from (*found[first:], *found[:first])
