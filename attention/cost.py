"""What a tile costs: an exact integer combination of six features.

Plans and placements are made on every rank apart and must come out the same, so costs are
integers: the fitted coefficients are quantised once, when a policy is made, and from then on
only integer products and sums are taken. Pure numpy.

Four features are the tile's own; two say what is particular to short ones. A kernel works on
blocks of query rows, and a started block costs a whole one; and where a tile is long enough for
larger blocks its rows may cost more. With both, short documents are priced within a few percent on
H100 and CPU alike (``benchmarks/cost_model.py``), and every feature grows with a tile's rows.

Shapes: F = 6 features, in the order of ``FEATURES``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

FEATURES = (
    "tiles",
    "query_tokens",
    "key_tokens",
    "causal_pairs",
    "query_blocks",
    "long_query_tokens",
)
NUM_FEATURES = len(FEATURES)
# Rows of a query block, and from which row on a query token is a long tile's.
BLOCK_ROWS = 64
LONG_ROWS = 192

# A tile of 1 Mi tokens has 2**39 causal pairs; coefficients of at most 2**21 for pairs and 2**40
# for the rest keep each product at most 2**60 and their sum below 2**62.1. Dropping 20 bits then
# keeps the sum over 2**13 sequences of 1 Mi tokens below 2**56.
_PAIR_BITS = 21
_OTHER_BITS = 40
_DROPPED_BITS = 20
_MAX_SCALE_BITS = 60


def tile_features(row_begin: Any, row_end: Any) -> Int64:
    """Return the features of tiles that read query rows ``row_begin:row_end`` of a document.

    Row ``i`` of a causal document attends to keys ``0..i``, so a tile reads keys ``0:row_end``.

    Args:
        row_begin: first query row, integer or [...].
        row_end: one past the last query row, integer or [...].

    Returns:
        [..., F] int64; an empty tile has all features zero.
    """
    begin, end = np.asarray(row_begin, dtype=np.int64), np.asarray(row_end, dtype=np.int64)
    rows = end - begin
    # Filled in place: of the few tiles of a kernel call, stacking would take most of the time.
    features = np.empty((*rows.shape, NUM_FEATURES), dtype=np.int64)
    features[..., 0] = 1
    features[..., 1] = rows
    features[..., 2] = end
    features[..., 3] = (end * (end + 1) - begin * (begin + 1)) // 2
    features[..., 4] = _blocks(rows)
    features[..., 5] = np.maximum(rows - LONG_ROWS, 0)
    if not (rows > 0).all():
        features *= (rows > 0)[..., None]
    return features


def _blocks(rows: Any) -> Any:
    return (rows + BLOCK_ROWS - 1) // BLOCK_ROWS


@dataclass(frozen=True, kw_only=True, slots=True)
class TileCost:
    """Price tiles in integer ticks; one tick is ``2 ** (20 - scale_bits)`` seconds.

    Attributes:
        coefficients: F integers, each in units of ``2 ** -scale_bits`` seconds.
        scale_bits: the unit of the coefficients; at most 60, finer than an attosecond.
    """

    coefficients: tuple[int, int, int, int, int, int]
    scale_bits: int

    def __post_init__(self) -> None:
        if not 0 <= self.scale_bits <= _MAX_SCALE_BITS:
            raise ValueError(f"scale_bits={self.scale_bits}: must be in 0..{_MAX_SCALE_BITS}")
        if min(self.coefficients) < 0 or not any(self.coefficients):
            raise ValueError(
                f"coefficients={self.coefficients}: must be non-negative and not all zero"
            )
        most = [1 << (_PAIR_BITS if name == "causal_pairs" else _OTHER_BITS) for name in FEATURES]
        if any(value > limit for value, limit in zip(self.coefficients, most, strict=True)):
            raise ValueError(
                f"coefficients={self.coefficients}: must be at most {most}, or costs overflow at "
                "1 Mi tokens"
            )

    @classmethod
    def from_seconds(cls, coefficients: Sequence[float]) -> Self:
        """Quantise fitted coefficients (seconds per feature, in the order of ``FEATURES``).

        The unit is the finest one in which no cost can overflow.
        """
        values = [float(value) for value in coefficients]
        if len(values) != NUM_FEATURES or not all(np.isfinite(values)) or min(values) < 0:
            raise ValueError(
                f"coefficients={values}: must be {NUM_FEATURES} finite non-negative seconds"
            )
        pairs = FEATURES.index("causal_pairs")
        others = max(values[:pairs] + values[pairs + 1 :]) * 2.0 ** (_PAIR_BITS - _OTHER_BITS)
        largest = max(values[pairs], others, 2.0**-_MAX_SCALE_BITS)
        scale_bits = min(_MAX_SCALE_BITS, int(np.floor(_PAIR_BITS - np.log2(largest))))
        if scale_bits < 0:
            raise ValueError(f"coefficients={values}: a tile would cost years")
        one, two, three, four, five, six = (round(value * 2.0**scale_bits) for value in values)
        return cls(coefficients=(one, two, three, four, five, six), scale_bits=scale_bits)

    @property
    def seconds_per_tick(self) -> float:
        return float(2.0 ** (_DROPPED_BITS - self.scale_bits))

    def ticks(self, features: Int64) -> Int64:
        """Return the cost of each tile: [..., F] features to [...] ticks, rounded down."""
        products = features * np.asarray(self.coefficients, dtype=np.int64)
        return np.asarray(products.sum(axis=-1) >> _DROPPED_BITS, dtype=np.int64)

    def price(self, row_begin: Any, row_end: Any) -> Int64:
        """Return ``ticks(tile_features(row_begin, row_end))``, several times as fast."""
        begin, end = np.asarray(row_begin, dtype=np.int64), np.asarray(row_end, dtype=np.int64)
        tiles, queries, keys, pairs, blocks, longs = self.coefficients
        # One sum in place of six columns: planning prices thousands of tiles in microseconds.
        total = pairs * ((end * (end + 1) - begin * (begin + 1)) >> 1)
        if queries or keys or tiles:
            total = total + (queries + keys) * end - queries * begin + tiles
        if blocks or longs:
            rows = end - begin
            total = total + blocks * _blocks(rows) + longs * np.maximum(rows - LONG_ROWS, 0)
        return np.asarray((total >> _DROPPED_BITS) * (end > begin), dtype=np.int64)

    def price_one(self, row_begin: int, row_end: int) -> int:
        """Return the price of one tile: as ``price``, without arrays."""
        tiles, queries, keys, pairs, blocks, longs = self.coefficients
        rows = row_end - row_begin
        area = (row_end * (row_end + 1) - row_begin * (row_begin + 1)) // 2
        total = tiles + queries * rows + keys * row_end + pairs * area
        total += blocks * _blocks(rows) + longs * max(rows - LONG_ROWS, 0)
        return total >> _DROPPED_BITS if rows > 0 else 0

    def first_row(self, row_end: int, ticks: float) -> float:
        """Return about where the tail ``row:row_end`` that costs ``ticks`` begins.

        The root of a long tail's quadratic in floating point, whose operations IEEE 754 rounds
        alike everywhere: a guess good to a block of rows, for an exact search to start from.
        """
        tiles, queries, keys, pairs, blocks, longs = self.coefficients
        per_row = queries + blocks / BLOCK_ROWS + longs
        fixed = tiles + blocks / 2 - longs * LONG_ROWS
        whole = fixed + (per_row + keys) * row_end + pairs * row_end * (row_end + 1) / 2
        # What a whole document costs beyond the tail: its rows before it.
        before = max(0.0, whole - ticks * 2.0**_DROPPED_BITS)
        slope = per_row + pairs / 2
        if pairs:
            return (math.sqrt(slope * slope + 2 * pairs * before) - slope) / pairs
        return before / slope if slope else 0.0

    def seconds(self, features: Int64) -> NDArray[np.float64]:
        """Return the cost of each tile in seconds: [..., F] to [...]."""
        return np.asarray(self.ticks(features) * self.seconds_per_tick, dtype=np.float64)


# Before anything is measured: cost proportional to causal pairs, as every FLOPs model has it.
FLOPS_COST = TileCost.from_seconds((0.0, 0.0, 0.0, 1e-9, 0.0, 0.0))
