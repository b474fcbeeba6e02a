"""Lengths in a CSV: a list of them, or a histogram, told apart by the header and by all rows.

Shapes: D documents; K bins.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.column_names import holds_lengths, is_label, is_lower, is_upper, weighing
from benchmarks.csv_table import Column, CsvTable, parse_csv
from benchmarks.histogram import Histogram, histogram_of
from benchmarks.ranges import Range, closed, is_infinite, number, parse_range

Int64 = NDArray[np.int64]

_FORMS = (
    "a list has one column named length, tokens or num_tokens; a histogram has ranges as [11, 50] "
    "or 11-50, a column upper, or a column length, beside one named count or percent"
)


def read_csv(text: str) -> Int64 | Histogram:
    """Return [D] lengths, or the histogram, that a CSV holds.

    Without a header it is one column of lengths, or ranges with one count each. A length beside a
    count is a bin of that length alone; bins that are known by their last length begin after the
    one below.

    Raises:
        ValueError: it is neither for certain; lists the columns and the forms that are.
    """
    table = parse_csv(text)
    own = table.columns
    if not own or not own[0].fields:
        return np.zeros(0, dtype=np.int64)
    if not table.has_header:
        return _without_header(table)
    weights = _weights(own, beside_bins=True)
    lengths = [column for column in own if holds_lengths(column.name)]
    uppers = [column for column in own if is_upper(column.name)]
    # Among lengths some field of a text may look like a range.
    ranges = _ranges(own, all_rows=bool(lengths) and not weights)
    if ranges and len(ranges) == len(weights) == 1:
        return _of_ranges(ranges[0], weights[0])
    if not ranges and not lengths and len(uppers) == len(weights) == 1:
        return _of_bounds(own, uppers[0], weights[0])
    if not ranges and len(lengths) == 1 and not (uppers and weights):
        return _of_lengths(table, lengths[0])
    raise _unclear(table)


def _without_header(table: CsvTable) -> Int64 | Histogram:
    own = table.columns
    if len(own) == 1 and not any(map(parse_range, own[0].fields)):
        return own[0].integers()
    ranges = _ranges(own, all_rows=False)
    others = [column for column in own if column not in ranges]
    if len(ranges) != 1 or len(others) != 1:
        raise _unclear(table)
    return _of_ranges(ranges[0], others[0])


def _of_lengths(table: CsvTable, lengths: Column) -> Int64 | Histogram:
    """Return the lengths of a column, weighted where another says for certain how often."""
    others = [column for column in table.columns if column is not lengths]
    weights = _weights(others, beside_bins=False)
    unsure = [
        column
        for column in others
        if weighing(column.name) in ("number", "perhaps") and column.all_parse(number)
    ]
    if len(weights) > 1 or (unsure and not weights):
        raise _unclear(table)
    if not weights:
        return lengths.integers()
    values = lengths.integers().astype(np.float64)
    return Histogram(low=values, high=values, weights=np.array(_numbers(weights[0])))


def _of_ranges(ranges: Column, weights: Column) -> Histogram:
    return histogram_of(ranges.each(parse_range, "a range as [11, 50]"), _numbers(weights))


def _of_bounds(columns: Sequence[Column], uppers: Column, weights: Column) -> Histogram:
    """Return the histogram of bins that are known by their last length, or by both ends."""
    lowers = [column for column in columns if is_lower(column.name)]
    ends = uppers.each(_end, "the last length of a bin")
    order = sorted(range(len(ends)), key=lambda index: (ends[index].high, ends[index].low))
    if lowers:
        begins = [float(np.ceil(low)) for low in lowers[0].each(number, "a number")]
    else:
        begins = [0.0] * len(ends)
        for last, index in zip([-1, *order], order, strict=False):
            below = ends[last].high if last >= 0 else 0.0
            begins[index] = ends[index].low or below + 1
    pairs = zip(begins, ends, strict=True)
    return histogram_of([closed(low, end.high) for low, end in pairs], _numbers(weights))


def _end(field: str) -> Range | None:
    """Return a bin that ends here and whose begin is not known, 0; a range knows its own."""
    value = math.inf if is_infinite(field) else number(field)
    return parse_range(field) if value is None else Range(0, value)


def _ranges(columns: Sequence[Column], *, all_rows: bool) -> list[Column]:
    """Return the columns that have ranges in all rows, or in any.

    One that has them in some rows only is taken too, so that the others can be named.
    """
    enough = all if all_rows else any
    return [
        column
        for column in columns
        if not (is_upper(column.name) or is_lower(column.name) or is_label(column.name))
        and weighing(column.name) in ("none", "perhaps")
        and enough(parse_range(field) is not None for field in column.fields)
    ]


def _weights(columns: Sequence[Column], *, beside_bins: bool) -> list[Column]:
    """Return the columns that say how many documents there are, of the surest kind there is."""
    kinds = ("count", "number", "frequency", "share")
    for kind in kinds:
        if kind == "number" and not beside_bins:
            continue
        if found := [column for column in columns if weighing(column.name) == kind]:
            return found
    return []


def _numbers(weights: Column) -> list[float]:
    """Return the weights of bins.

    Raises:
        ValueError: one is no number, or they are running sums.
    """
    values = weights.each(lambda field: number(field.removesuffix("%")), "a count")
    if weighing(weights.name) == "share" and _are_running_sums(values):
        raise ValueError(
            f"column {weights.name}: rises to {values[-1]:g}, as sums of the rows before do; "
            "give each bin's own share"
        )
    return values


def _are_running_sums(shares: Sequence[float]) -> bool:
    """Whether shares that only rise to all there is come to more than that together."""
    whole = 100 if shares[0] >= 1 or shares[-1] > 1.1 else 1
    return (
        all(first <= second for first, second in pairwise(shares))
        and abs(shares[-1] - whole) < 1e-3 * whole
        and sum(shares) > 1.01 * whole
    )


def _unclear(table: CsvTable) -> ValueError:
    return ValueError(
        f"columns {table}: neither a list of lengths nor a histogram for certain: {_FORMS}"
    )
