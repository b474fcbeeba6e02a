"""Steps to place: documents drawn, packed into sequences, and priced.

Shapes: N packed sequences of a step; P of a pool; S documents of a step.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.lengths import Int64, family, packed_documents
from libra.attention.cost import FLOPS_COST, TileCost
from libra.attention.shape import PoolShape

# Costs are exact up to here.
_MOST_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PlacementCase:
    """One row of the benchmark.

    Attributes:
        lengths: a file of document lengths, or the name of a family.
        tokens: of a packed sequence.
        batch: packed sequences of a step, N.
        pool: sequences of a pool, P.
        elastic: the most sequences of an elastic pool; 0 leaves pools fixed.
        steps: how many are placed.
        seed: of the documents.
        cost: "flops" (causal pairs), "sum-l2", or seconds per tile, query token, key token and
            causal pair, separated by commas.
        exchange: whether to plan every cell and count what its ranks send.
    """

    lengths: str
    tokens: int
    batch: int
    pool: int
    elastic: int = 0
    steps: int = 200
    seed: int = 0
    cost: str = "flops"
    exchange: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= _MOST_TOKENS:
            raise ValueError(f"tokens={self.tokens}: must be in 1..{_MOST_TOKENS}")
        for name in ("batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if not 1 <= self.pool <= self.batch:
            raise ValueError(f"pool={self.pool}: must be in 1..batch={self.batch}")
        doublings, rest = divmod(self.elastic, self.pool)
        if rest or doublings < 0 or doublings & (doublings - 1) or self.elastic > self.batch:
            raise ValueError(
                f"elastic={self.elastic}: must be 0 or pool={self.pool} doubled, "
                f"at most batch={self.batch}"
            )
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must be at least 0")

    @property
    def shape(self) -> PoolShape:
        """A mesh whose CP groups hold one sequence of the step each."""
        return PoolShape(
            dp=self.batch, cp=1, sequences_per_pool=self.pool, largest_pool=self.elastic
        )


def add_case(parser: argparse.ArgumentParser) -> None:
    """Declare what is placed."""
    add = parser.add_argument
    lengths = "of documents; a histogram's range without an end goes to 1 Mi tokens"
    add("--lengths", required=True, metavar="FILE|NAME", help=lengths)
    add("--tokens", type=int, default=262144, help="of a packed sequence (%(default)s)")
    add("--batch", type=int, default=128, help="packed sequences of a step, N (%(default)s)")
    add("--pool", type=int, default=8, help="sequences of a pool, P (%(default)s)")
    add("--elastic", type=int, default=0, metavar="MAX", help="largest pool; 0 is fixed pools")
    add("--steps", type=int, default=200, help="(%(default)s)")
    add("--seed", type=int, default=0)


@dataclass(frozen=True, kw_only=True)
class DrawnStep:
    """The packed sequences of one step.

    Attributes:
        lengths: [S] of documents, sequence after sequence.
        begins: [N + 1] where each sequence's documents begin.
        costs: [N] integer ticks.
    """

    lengths: Int64
    begins: Int64
    costs: Int64

    def cell(self, sequences: Int64) -> list[Int64]:
        """Return the documents' lengths of each of these sequences."""
        return [self.lengths[self.begins[own] : self.begins[own + 1]] for own in sequences]


def drawn_steps(case: PlacementCase) -> Iterator[DrawnStep]:
    """Draw the steps of a case, the same for each seed.

    Raises:
        ValueError: lengths or cost are not what they must be.
    """
    draw, rng, price = family(case.lengths), np.random.default_rng(case.seed), _price(case.cost)
    for _ in range(case.steps):
        lengths, begins = packed_documents(draw, rng, case.tokens, case.batch)
        costs = np.add.reduceat(price(lengths), begins[:-1])
        yield DrawnStep(lengths=lengths, begins=begins, costs=costs)


def _price(cost: str) -> Callable[[Int64], Int64]:
    """Return what gives the integer cost of documents from their lengths."""
    if cost == "sum-l2":
        return np.square
    tile = FLOPS_COST
    if cost != "flops":
        try:
            tile = TileCost.from_seconds([float(part) for part in cost.split(",")])
        except ValueError as error:
            raise ValueError(
                f"cost={cost}: must be flops, sum-l2 or six seconds A,B,C,D,E,F: {error}"
            ) from error
    return lambda lengths: tile.price(0, lengths)
