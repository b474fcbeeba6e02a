"""Lengths in columns of Parquet files and Hugging Face data sets, by whole Arrow arrays."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from libra.balancer.packed import Int64, Integers
from libra.balancer.rows import MISSING, TOO_LARGE, checked_rows, joined

# Rows read at a time. A row of tokens can be megabytes long.
_INTEGERS, _LISTS = 1 << 20, 1 << 8


def read_parquet(path: Path, column: str) -> Integers:
    """Return the lengths of a Parquet file's column: integers, or lists, whose lengths count.

    Raises:
        ValueError: not Parquet, no such column, or a row that is no length; names it.
    """
    source = f"lengths={path}"
    parts, row = [], 0
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            check_column(column, file.schema_arrow.names, source)
            kind = file.schema_arrow.field(column).type
            rows = _INTEGERS if _is_number(kind) else _LISTS
            arrays = (
                batch.column(0) for batch in file.iter_batches(batch_size=rows, columns=[column])
            )
            if not has_lengths(kind):
                raise ValueError(_refusal(kind, arrays, source, column))
            for array in arrays:
                values = array_lengths(array)
                parts.append(checked_rows(values, source, row))
                row += len(values)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{source}: cannot be read as Parquet: {error}") from error
    return joined(parts, source)


def read_dataset(dataset: Any, column: str) -> Integers:
    """Return the lengths of a ``Dataset``'s column in its current order.

    Raises:
        ValueError: no such column, or a row that is no length; names it.
    """
    source = "lengths: the data set"
    check_column(column, dataset.column_names, source)
    table = dataset.data.column(column)
    if not has_lengths(table.type):
        own = table if dataset._indices is None else table.take(dataset._indices.column(0))
        raise ValueError(_refusal(table.type, own.chunks, source, column))
    values = np.concatenate([np.zeros(0, np.int64), *map(array_lengths, table.chunks)])
    # After shuffle, select or filter: the rows that are there, among all that the table holds.
    # Reading them through the data set would cost a Python call for each.
    if dataset._indices is not None:
        values = values[dataset._indices.column(0).to_numpy()]
    return joined([checked_rows(values, source, 0)], source)


def array_lengths(array: Any) -> Int64:
    """Return an Arrow array's integers, or its lists' lengths.

    Where it has nulls they are ``MISSING``, and numbers beyond int64 ``TOO_LARGE``.
    """
    if _is_list(array.type):
        array = pc.call_function("list_value_length", [array])
    values: Int64 = pc.fill_null(array.cast(pa.int64(), safe=False), MISSING).to_numpy(
        zero_copy_only=False
    )
    if array.type == pa.uint64():
        most = pa.scalar(np.iinfo(np.int64).max, pa.uint64())
        large = pc.fill_null(pc.call_function("greater", [array, most]), False)
        values = np.where(large.to_numpy(zero_copy_only=False), TOO_LARGE, values)
    return values


def has_lengths(kind: Any) -> bool:
    """Whether columns of an Arrow type can be lengths: integers, or lists of tokens."""
    return bool(pa.types.is_integer(kind)) or _is_list(kind)


def wrong_kind(kind: Any) -> str:
    """Return what is wrong with a column of another type."""
    return f"is {kind}; must be integers, or lists of tokens, whose lengths count"


def _refusal(kind: Any, arrays: Iterable[Any], source: str, column: str) -> str:
    """Return the complaint about the first row that is no length, of a column that has none.

    Among fractions that is the first that is not whole, else the first row.
    """
    where, shown, row = "", "", 0
    for array in arrays:
        at = _first_fraction(array) if pa.types.is_floating(kind) else None
        if len(array) and (at is not None or not where):
            where, shown = f", row {row + (at or 0)}", f"{array[at or 0].as_py()!r:.40} "
        if at is not None or not pa.types.is_floating(kind):
            break
        row += len(array)
    return f"{source}{where}, column {column!r}: {shown}{wrong_kind(kind)}"


def _first_fraction(array: Any) -> int | None:
    """Return the index of the first number that is not whole, or missing."""
    values = array.to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(values != np.floor(values))
    return int(bad[0]) if len(bad) else None


def check_column(column: str, columns: Sequence[str], source: str) -> None:
    """Refuse a column that is not there, or that is there more than once.

    Raises:
        ValueError: lists the columns that are.
    """
    if column not in columns:
        raise ValueError(
            f"{source}: has no column {column!r}; name one of {', '.join(map(repr, columns))}"
        )
    if (times := list(columns).count(column)) > 1:
        raise ValueError(f"{source}: has {times} columns {column!r}; rename all but one")


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: Any) -> bool:
    """Tell lists of tokens; a list of records, such as a chat's messages, has no such length."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_list(kind) for is_list in lists) and not pa.types.is_struct(kind.value_type)
