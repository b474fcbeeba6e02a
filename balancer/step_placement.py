"""Place a whole optimizer step: its sequences onto CP groups, micro-batch by micro-batch.

How is a matter of when ranks meet. Where they meet in every micro-batch, cells are evened: all
pools of a micro-batch must end together, and where one sequence forbids it, either its pool is
larger for once or its whole micro-batch is dearer and the others cheaper. Where they meet once a
step, the totals of the CP groups are evened, which may leave nothing for pools to do.

Shapes: N sequences; B micro-batches of dp CP groups, N = B dp; M cells; C ranks of a CP group.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.attention.plan import TOLERANCE_PERMILLE
from libra.attention.shape import PoolShape
from libra.balancer.capacity import Capacities
from libra.balancer.elastic import Sizes, elastic_sizes, fixed_sizes
from libra.balancer.placement import Placement, check_costs, place
from libra.balancer.refine import MAX_ROUNDS
from libra.balancer.uneven import dearer_micro_batches

Int64 = NDArray[np.int64]

# When ranks of different pools wait for each other: FSDP and pipelines make them meet in every
# micro-batch, plain gradient accumulation once a step.
Meeting = Literal["micro_batch", "step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlacement:
    """Which sequence every CP group holds in every micro-batch, and who shares a cell.

    Attributes:
        slots: [B, dp] index among the step's N sequences.
        sizes: CP groups of each cell of each micro-batch, in the order of CP groups.
        pooling: whether cells move tiles; off where placement alone evens the step.
        placement: loads and bound of what was evened: cells, CP groups over the step, or pools
            over the step; ``None`` where sequences come in the order of drawing.
        skew: predicted time of the step's slowest ranks over that of perfect balance.
        says: a sentence for people: how even the step is, and what keeps it from being more so.
    """

    slots: Int64
    sizes: Sizes
    pooling: bool
    placement: Placement | None
    skew: float
    says: str

    def cell(self, micro_batch: int, dp_rank: int) -> range:
        """Return the CP groups that share a cell with this one, itself included."""
        first = 0
        for size in self.sizes[micro_batch]:
            if first <= dp_rank < first + size:
                return range(first, first + size)
            first += size
        raise ValueError(f"dp_rank={dp_rank}: must be in 0..{first - 1}")


def place_in_order(num_sequences: int, shape: PoolShape) -> StepPlacement:
    """Return plain Ulysses' placement: sequences in the order of drawing, and nothing moves.

    Raises:
        ValueError: the sequences do not fill whole micro-batches.
    """
    return StepPlacement(
        slots=np.arange(num_sequences, dtype=np.int64).reshape(-1, shape.dp),
        sizes=fixed_sizes(num_sequences, shape),
        pooling=False,
        placement=None,
        skew=1.0,
        says="Sequences come in the order of drawing; no tile moves.",
    )


def place_step(
    costs: ArrayLike,
    shape: PoolShape,
    *,
    meeting: Meeting = "micro_batch",
    speeds_permille: Sequence[int] = (),
    heads_even: bool = True,
    tolerance_permille: int = TOLERANCE_PERMILLE,
) -> StepPlacement:
    """Return an even placement of a step's N sequences; the same on every host.

    Args:
        costs: [N] non-negative integers.
        shape: of the mesh; N is a multiple of its dp.
        meeting: when ranks of different pools wait for each other.
        speeds_permille: of all dp C ranks, by CP group and within it; empty when all are equal.
        heads_even: whether the C ranks of a CP group carry equal work, planned plane by plane.
        tolerance_permille: what is this close to even is left as it is.

    Raises:
        ValueError: bad costs, a step that does not fill whole micro-batches, an unknown meeting,
            or speeds that are not a positive integer for each rank.
    """
    own = check_costs(costs)
    sizes = fixed_sizes(len(own), shape)
    capacities = Capacities(shape, speeds_permille, heads_even=heads_even)
    fair = 1 + tolerance_permille / 1000
    if meeting == "step":
        return _meeting_once(own, shape, capacities, fair)
    if meeting != "micro_batch":
        raise ValueError(f"meeting={meeting!r}: must be 'micro_batch' or 'step'")
    best = _even_cells(own, sizes, capacities)
    if best.skew > fair and len(sizes) > 1 < len(sizes[0]):
        # Exchanges even cells, not the sums of micro-batches' slowest, which they may raise.
        others = [_even_cells(own, sizes, capacities, max_rounds=0)]
        if len(set(sizes[0])) == 1:
            others.append(_uneven_micro_batches(own, best, capacities, fair))
        best = min([best, *others], key=_skew)
    if best.skew > fair and len(shape.pool_sizes) > 1:
        elastic = _even_cells(own, elastic_sizes(own, shape, tolerance_permille), capacities)
        # Larger pools send more: they must gain more than what counts as even.
        if elastic.skew * fair < best.skew:
            best = elastic
    return best


def _even_cells(
    costs: Int64, sizes: Sizes, capacities: Capacities, *, max_rounds: int = MAX_ROUNDS
) -> StepPlacement:
    """Even the cells of all micro-batches; of one kind, the heaviest share a micro-batch."""
    cells = [cell for own in sizes for cell in _ranges(own)]
    placed = place(
        costs,
        [len(cell) for cell in cells],
        capacities=[capacities.of(cell) for cell in cells],
        max_rounds=max_rounds,
    )
    return _of_cells(placed, sizes)


def _uneven_micro_batches(
    costs: Int64, even: StepPlacement, capacities: Capacities, fair: float
) -> StepPlacement:
    """Even the cells of each dearer micro-batch apart."""
    assert even.placement is not None
    pools = _ranges(even.sizes[0])
    order, loads = [], []
    for own in dearer_micro_batches(costs, len(even.sizes), len(pools), len(pools[0]), fair):
        repeated = len(own) * len(even.sizes) // len(costs)
        bears = [capacities.of(pool) for pool in pools] * repeated
        placed = place(costs[own], len(bears), capacities=bears)
        order.append(own[placed.cells])
        loads.append(placed.loads)
    return _of_cells(
        replace(even.placement, cells=np.concatenate(order), loads=np.concatenate(loads)),
        even.sizes,
    )


def _of_cells(placed: Placement, sizes: Sizes) -> StepPlacement:
    ends = np.cumsum([0, *map(len, sizes)]).tolist()
    times = placed.loads / placed.capacities
    slowest = sum(float(times[first:last].max()) for first, last in pairwise(ends))
    fair = placed.loads.sum() / placed.capacities.sum() * len(sizes)
    skew = slowest / fair if fair else 1.0
    return StepPlacement(
        slots=placed.order.reshape(len(sizes), -1),
        sizes=sizes,
        pooling=True,
        placement=placed,
        skew=skew,
        says=_cells_say(placed, sizes, skew),
    )


def _skew(placed: StepPlacement) -> float:
    return placed.skew


def _meeting_once(
    costs: Int64, shape: PoolShape, capacities: Capacities, fair: float
) -> StepPlacement:
    """Even the totals of CP groups over the step, and those of pools where that is not enough."""
    sizes = fixed_sizes(len(costs), shape)
    groups = [range(index, index + 1) for index in range(shape.dp)]
    alone = _over_step(costs, groups, capacities, len(sizes))
    alone_skew = 1 + alone.imbalance
    says = f"Ranks meet once a step: placement alone brings CP groups to {alone_skew:.3f}"
    pools = _over_step(costs, _ranges(sizes[0]), capacities, len(sizes))
    pooling = alone_skew > fair and (1 + pools.imbalance) * fair < alone_skew
    return StepPlacement(
        slots=_by_micro_batch(costs, pools if pooling else alone, len(sizes)),
        sizes=sizes,
        pooling=pooling,
        placement=pools if pooling else alone,
        skew=1 + (pools if pooling else alone).imbalance,
        says=f"{says}, pools to {1 + pools.imbalance:.3f}."
        if pooling
        else f"{says} of perfect balance; no tile moves.",
    )


def _over_step(
    costs: Int64, pools: Sequence[range], capacities: Capacities, micro_batches: int
) -> Placement:
    return place(
        costs,
        [len(pool) * micro_batches for pool in pools],
        capacities=[capacities.of(pool) for pool in pools],
    )


def _by_micro_batch(costs: Int64, placed: Placement, micro_batches: int) -> Int64:
    """Return [B, dp]: each cell's sequences spread over micro-batches, the costliest first.

    So that sequences of similar cost share a micro-batch, and few tiles move in it.
    """
    columns = []
    for cell in placed.cells:
        own = cell[cell >= 0]
        falling = own[np.argsort(-costs[own], kind="stable")]
        columns.append(falling.reshape(micro_batches, -1))
    return np.concatenate(columns, axis=1)


def _ranges(sizes: Sequence[int]) -> list[range]:
    """Return the CP groups of each cell of a micro-batch."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [range(first, last) for first, last in pairwise(ends)]


def _cells_say(placed: Placement, sizes: Sizes, skew: float) -> str:
    says = f"Slowest ranks take {skew:.3f} of perfect balance"
    larger = Counter(size for own in sizes for size in own if size > min(sizes[-1]))
    if larger:
        shown = ", ".join(f"{count} of {size}" for size, count in sorted(larger.items()))
        says += f", with larger pools for the longest sequences ({shown})"
    if placed.bound_imbalance > 0.001:
        says += (
            f"; the lengths are the limit: some pool has {1 + placed.bound_imbalance:.3f} fair "
            "shares in any placement"
        )
    return says + "."
