"""Which pool size a job's own steps call for, and whether pooling pays at all.

Every size is tried on recent steps with the placement that training uses. The answer is the
smallest size that is as good as the best: larger pools reach over more links.

Shapes: S steps; B micro-batches; G CP groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra.attention.shape import PoolShape
from libra.balancer.elastic import fixed_sizes
from libra.balancer.pool_advice import AS_GOOD, PoolAdvice, PoolSize, pool_reason
from libra.balancer.step_placement import Meeting, StepPlacement, place_step

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

# Seconds that a rank's exchange takes of messages and bytes; None while it is not known.
ExchangeSeconds = Callable[[float, float], float | None]

# Sequences to place for each size: enough for a mean, few enough to be quick.
_MAX_SEQUENCES = 512
# Larger pools gain next to nothing over these, and their exchange grows.
_LARGEST = 64
_COST_UNITS = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """One step's costs [B, G] in seconds, the same as integers [B * G], and what they sum to."""

    seconds: Float64
    costs: Int64

    @property
    def fair_seconds(self) -> float:
        groups: int = self.seconds.shape[1]
        return float(self.seconds.sum()) / groups


def advise_pool_size(
    seconds: Sequence[Float64],
    *,
    meeting: Meeting = "micro_batch",
    exchange: ExchangeSeconds | None = None,
    bytes_per_second: float | None = None,
    other_seconds: float | None = None,
) -> PoolAdvice | None:
    """Return the size for steps of sequence costs [B, G]; None where they hold no work.

    Args:
        seconds: of attention at home, of a whole CP group's sequence, step by step.
        exchange: seconds of a rank's exchange in one micro-batch.
        bytes_per_second: what moving a second of attention sends.
        other_seconds: of a step, what is neither attention nor exchange; None where not known.

    Raises:
        ValueError: steps of different numbers of CP groups, or an unknown meeting.
    """
    groups = {step.shape[1] for step in seconds}
    if len(groups) > 1:
        raise ValueError(f"seconds: steps of {sorted(groups)} CP groups; must be of one number")
    steps = _sample([step for step in seconds if step.sum() > 0])
    if not steps:
        return None
    dp = groups.pop()
    home = sum(_home_seconds(step, meeting) for step in steps)
    fair = sum(step.fair_seconds for step in steps)
    tried: list[PoolSize] = []
    for size in _sizes(dp):
        shape = PoolShape(dp=dp, cp=1, sequences_per_pool=size)
        placed = [place_step(step.costs, shape, meeting=meeting) for step in steps]
        cost = _exchange_seconds(steps, placed, exchange, bytes_per_second)
        took = _seconds(placed, steps)
        tried.append(
            PoolSize(
                sequences_per_pool=size,
                skew=took / fair,
                saved_share=(home - took - (cost or 0.0)) / home,
                exchange_share=None if cost is None else cost / home,
                pooling=any(p.pooling and size > 1 for p in placed),
                step_seconds=None
                if other_seconds is None
                else other_seconds + (took + (cost or 0.0)) / len(steps),
            )
        )
    return _advice(steps, tried, meeting, home / fair)


def _seconds(placed: Sequence[StepPlacement], steps: Sequence[_Step]) -> float:
    return float(sum(p.skew * s.fair_seconds for p, s in zip(placed, steps, strict=True)))


def _sample(seconds: Sequence[Float64]) -> list[_Step]:
    """Return the newest steps, as many as are quickly placed, at least one."""
    kept: list[_Step] = []
    placed = 0
    for step in reversed(seconds):
        if kept and placed + step.size > _MAX_SEQUENCES:
            break
        placed += step.size
        costs = np.rint(step / step.sum() * _COST_UNITS).astype(np.int64).ravel()
        kept.append(_Step(seconds=step, costs=costs))
    return kept


def _sizes(dp: int) -> list[int]:
    """Return 1, 2, 4, ... and dp itself, as far as pools are kept small."""
    sizes = [*(1 << power for power in range((dp - 1).bit_length())), dp]
    return [size for size in sizes if size <= _LARGEST]


def _home_seconds(step: _Step, meeting: Meeting) -> float:
    if meeting == "step":
        return float(step.seconds.sum(axis=0).max())
    return float(step.seconds.max(axis=1).sum())


def _exchange_seconds(
    steps: Sequence[_Step],
    placed: Sequence[StepPlacement],
    exchange: ExchangeSeconds | None,
    bytes_per_second: float | None,
) -> float | None:
    """Return what the busiest ranks' exchanges take together, None if it cannot be told."""
    if exchange is None or bytes_per_second is None:
        return None
    total = 0.0
    for step, placement in zip(steps, placed, strict=True):
        if not placement.pooling:
            continue
        for slots, sizes in zip(placement.slots, placement.sizes, strict=True):
            moved, peers = _moved(step.seconds.ravel()[slots], sizes)
            seconds = exchange(peers, moved * bytes_per_second) if moved > 0 else 0.0
            if seconds is None:
                return None
            total += seconds
    return total


def _moved(seconds: Float64, sizes: Sequence[int]) -> tuple[float, float]:
    """Return the most that leaves a CP group [G] of a micro-batch, and how many peers it has."""
    starts = np.cumsum([0, *sizes[:-1]])
    fair = np.repeat(np.add.reduceat(seconds, starts) / sizes, sizes)
    surplus = seconds - fair
    worst = int(surplus.argmax())
    return float(surplus[worst]), float(np.repeat(sizes, sizes)[worst] - 1)


def _advice(
    steps: Sequence[_Step], tried: list[PoolSize], meeting: Meeting, home_skew: float
) -> PoolAdvice:
    best = max(size.saved_share for size in tried)
    chosen = next(size for size in tried if size.saved_share >= best - AS_GOOD)
    elastic_from, largest = 0, 0
    if meeting == "micro_batch" and chosen.sequences_per_pool > 1:
        elastic_from, largest = _elastic(steps, chosen)
    largest_sequence = max(float(s.seconds.max() / s.seconds.mean()) for s in steps)
    return PoolAdvice(
        meeting=meeting,
        recommended=chosen.sequences_per_pool,
        largest_pool=largest,
        elastic_from=elastic_from,
        home_skew=home_skew,
        largest_sequence=largest_sequence,
        sizes=tried,
        reason=pool_reason(chosen, tried[0], home_skew, largest_sequence, (elastic_from, largest)),
    )


def _elastic(steps: Sequence[_Step], chosen: PoolSize) -> tuple[int, int]:
    """Return the smallest fixed size that elastic pools make as good, and the largest of those."""
    dp = steps[0].seconds.shape[1]
    fair = sum(step.fair_seconds for step in steps)
    for size in _sizes(dp):
        if size >= chosen.sequences_per_pool:
            break
        largest = size << (dp // size).bit_length() - 1
        shape = PoolShape(dp=dp, cp=1, sequences_per_pool=size, largest_pool=largest)
        placed = [place_step(step.costs, shape) for step in steps]
        took = _seconds(placed, steps)
        used = [
            max(max(own) for own in p.sizes)
            for p, s in zip(placed, steps, strict=True)
            if p.sizes != fixed_sizes(len(s.costs), shape)
        ]
        if used and took / fair <= chosen.skew * (1 + AS_GOOD):
            return size, max(used)
    return 0, 0
