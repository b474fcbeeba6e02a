"""Advice on a pool size, with the sizes tried and its reason in words."""

import math

import msgspec

from libra.attention.plan import TOLERANCE_PERMILLE
from libra.balancer.step_placement import Meeting

# As good as the best: of the step's attention.
AS_GOOD = 0.01


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """What pools of one size would do.

    Attributes:
        sequences_per_pool: P, CP groups of a pool.
        skew: predicted slowest ranks over perfect balance.
        saved_share: of plain Ulysses' attention seconds; the exchange is taken off where known.
        exchange_share: what the exchange takes of them if nothing hides it; None if unknown.
        pooling: tiles move; off where placement alone does as well.
        step_seconds: what a step would take, were the rest of it as it is; None if unknown.
    """

    sequences_per_pool: int
    skew: float
    saved_share: float
    exchange_share: float | None
    pooling: bool
    step_seconds: float | None = None


class PoolAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A pool size for ranks that meet in every micro-batch, or once a step.

    Attributes:
        recommended: P; 1 where pooling does not pay.
        largest_pool: with elastic pools up to this size ``elastic_from`` does as well as
            ``recommended``; 0 where they do not help.
        elastic_from: the size of fixed pools beside them.
        home_skew: of plain Ulysses.
        largest_sequence: costliest sequence of a step over the mean one: a pool of fewer CP groups
            cannot even it out.
        sizes: every size tried, smallest first.
        reason: the above for people.
    """

    meeting: Meeting
    recommended: int
    largest_pool: int
    elastic_from: int
    home_skew: float
    largest_sequence: float
    sizes: list[PoolSize]
    reason: str


def pool_reason(
    chosen: PoolSize,
    alone: PoolSize,
    home_skew: float,
    largest_sequence: float,
    elastic: tuple[int, int],
) -> str:
    """Return why this size, with its numbers; ``elastic`` are the sizes of elastic pools."""
    if home_skew <= 1 + TOLERANCE_PERMILLE / 1000:
        return f"Even already: plain Ulysses has a skew of {home_skew:.2f}; nothing needs to move."
    if not chosen.pooling:
        if alone.saved_share > AS_GOOD:
            return (
                f"Placement alone evens it: skew {alone.skew:.2f} instead of {home_skew:.2f}; no "
                "pool saves more."
            )
        return f"Pooling does not pay: no size saves more than 1 % (skew {home_skew:.2f})."
    size = chosen.sequences_per_pool
    text = (
        f"Pools of {size} bring skew from {home_skew:.2f} to {chosen.skew:.2f} and save "
        f"{chosen.saved_share:.0%} of the step's attention; larger ones gain less than 1 % more."
    )
    needed = math.ceil(largest_sequence)
    text += f" The costliest sequence is {largest_sequence:.1f} times the mean"
    text += "." if size < needed else f", so that pools of fewer than {needed} cannot even it."
    if elastic[1]:
        text += f" Elastic pools of {elastic[0]} up to {elastic[1]} do as well."
    return text
