"""Place the packed sequences of one optimizer step into cells of even cost.

Longest first into the cell that is lightest and still has a free slot, then exchanges between
cells. Every rank places by itself and must come to the same answer: costs are integers, sorts are
stable, and exchanges are counted, never timed.

A cell of fewer or slower ranks bears less. What is evened is a cell's load over its capacity, kept
an integer by weights that are inverse to capacities. Between equal cells they are 1.

Shapes: N sequences; M cells of up to P slots, N slots in all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra.balancer.bound import lower_bound
from libra.balancer.refine import MAX_ROUNDS, Cells
from libra.balancer.start import level_by_level, longest_first

Int64 = NDArray[np.int64]

# A fiftieth of a per cent above the bound is far more even than costs are true.
EVEN_ENOUGH = 5000

# Weights beyond this many bits are rounded; costs keep what int64 has left.
_WEIGHT_BITS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Which sequences share a cell.

    Attributes:
        cells: [M, P] indices of sequences, each cell in rising order, then -1 where it has fewer
            slots than P; among cells of one size and capacity the heaviest comes first.
        loads: [M] cost of each cell.
        capacities: [M] what cells bear, relative to each other.
        weights: [M] inverse to capacities; loads compare by load times weight.
        bound: no placement's heaviest cell can have less load times weight.
    """

    cells: Int64
    loads: Int64
    capacities: Int64
    weights: Int64
    bound: int

    @property
    def order(self) -> Int64:
        """The sequences, cell after cell: [N]."""
        return self.cells[self.cells >= 0]

    @property
    def imbalance(self) -> float:
        """Slowest cell's load over capacity, over that of all cells together, less one."""
        mean = self.loads.sum() / self.capacities.sum()
        return float((self.loads / self.capacities).max() / mean) - 1.0 if mean else 0.0

    @property
    def bound_imbalance(self) -> float:
        """The least imbalance that these costs allow in these cells."""
        mean = self.loads.sum() / (1.0 / self.weights).sum()
        return max(0.0, float(self.bound / mean) - 1.0) if mean else 0.0


def place(
    costs: ArrayLike,
    cells: int | Sequence[int],
    *,
    capacities: Sequence[int] = (),
    max_rounds: int = MAX_ROUNDS,
) -> Placement:
    """Return an even placement of N sequences into cells.

    Args:
        costs: [N] non-negative integers.
        cells: slots of each cell, N in all; or M, for cells of N / M each.
        capacities: what each cell bears, as the sum of its ranks' speeds; its slots when empty.
        max_rounds: rounds of exchanges after longest-first.

    Raises:
        ValueError: costs are not non-negative integers or too large, cells do not hold them, or
            capacities are not a positive integer for each cell.
    """
    given = check_costs(costs)
    sizes = cell_sizes(cells, len(given))
    capacity = _capacities(capacities, sizes)
    weights = _weights(capacity)
    # Placed by rank in cost, so that costs which lose bits keep the order that all bits give.
    ranked = np.argsort(-given, kind="stable")
    own = given[ranked]
    dropped = _bits_to_drop(own, weights)
    weighed = own >> dropped
    bound = lower_bound(weighed, sizes, weights)
    limit = bound + bound // EVEN_ENOUGH
    best = Cells(longest_first(weighed, sizes, weights), weighed, weights)
    best.refine(limit, max_rounds)
    if max_rounds and sizes.min() == sizes.max() and best.times.max() > limit:
        other = Cells(level_by_level(weighed, len(sizes)), weighed, weights)
        other.refine(limit, max_rounds)
        best = min(best, other, key=lambda cells: int(cells.times.max()))
    members = _heaviest_first(best.members, best.loads, sizes, capacity)
    sequences = np.sort(np.append(ranked, len(own))[members], axis=1)
    return Placement(
        cells=np.where(sequences < len(own), sequences, -1),
        loads=np.append(own, 0)[members].sum(axis=1),
        capacities=capacity,
        weights=weights,
        bound=lower_bound(own, sizes, weights) if dropped else bound,
    )


def check_costs(costs: ArrayLike) -> Int64:
    """Return costs as int64.

    Raises:
        ValueError: not a list of non-negative integers, or their sum is beyond int64.
    """
    own = np.asarray(costs)
    if own.ndim != 1 or not len(own) or own.dtype.kind not in "iu":
        raise ValueError("costs: must be a non-empty list of non-negative integers")
    if own.min() < 0:
        bad = int(np.flatnonzero(own < 0)[0])
        raise ValueError(f"costs[{bad}]={own[bad]}: must be a non-negative integer")
    if sum(own.tolist()) >= 2**62:
        raise ValueError(f"costs: must sum to less than {2**62}")
    return own.astype(np.int64)


def cell_sizes(cells: int | Sequence[int], num_sequences: int) -> Int64:
    """Return [M] slots of each cell.

    Raises:
        ValueError: the cells do not hold the sequences exactly.
    """
    sizes = np.asarray(cells)
    if sizes.dtype.kind not in "iu" or sizes.ndim > 1:
        raise ValueError(f"cells={cells!r}: must be an integer, or one for each cell")
    if not sizes.ndim:
        count = int(sizes)
        if count < 1 or num_sequences % count:
            raise ValueError(f"cells={count}: must divide the {num_sequences} sequences of a step")
        return np.full(count, num_sequences // count, dtype=np.int64)
    if not len(sizes) or sizes.min() < 1 or sizes.sum() != num_sequences:
        raise ValueError(
            f"cells={sizes.tolist()}: must be at least 1 each and sum to {num_sequences} sequences"
        )
    return sizes.astype(np.int64)


def _capacities(given: Sequence[int], sizes: Int64) -> Int64:
    own = np.asarray(given) if len(given) else sizes
    fits = own.dtype.kind in "iu" and len(own) == len(sizes) and own.min() > 0
    # The slowest cell's weight has _WEIGHT_BITS; one this much faster still has ten of them.
    if not fits or own.max() // own.min() >= 1 << _WEIGHT_BITS - 10:
        most = 1 << _WEIGHT_BITS - 10
        raise ValueError(
            f"capacities={list(given)}: must be {len(sizes)} integers of at least 1, none {most} "
            "times another"
        )
    return own.astype(np.int64)


def _weights(capacities: Int64) -> Int64:
    """Return integers inverse to capacities: exactly, if they need few bits."""
    different = np.unique(capacities).tolist()
    common = math.lcm(*different)
    if common // different[0] < 1 << _WEIGHT_BITS:
        return np.asarray(common // capacities)
    return np.asarray(((different[0] << _WEIGHT_BITS) + capacities // 2) // capacities)


def _bits_to_drop(costs: Int64, weights: Int64) -> int:
    """Return how many low bits costs must lose for the sum times any weight to stay in int64."""
    most: int = sum(costs.tolist()) * int(weights.max())
    return max(0, most.bit_length() - 62)


def _heaviest_first(members: Int64, loads: Int64, sizes: Int64, capacities: Int64) -> Int64:
    """Return the cells with those of one kind, wherever they stand, in falling order of load."""
    ordered = np.empty_like(members)
    kinds = np.stack((sizes, capacities), axis=1)
    for kind in np.unique(kinds, axis=0):
        alike = np.flatnonzero((kinds == kind).all(axis=1))
        ordered[alike] = members[alike[np.argsort(-loads[alike], kind="stable")]]
    return ordered
