"""Read document lengths from a file, whatever of the usual formats it has.

Shapes: D documents.
"""

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.csv_lengths import read_csv
from benchmarks.histogram import LONGEST, Histogram, Int64

# Names that a column of lengths goes by, the likeliest first; lists count as their lengths.
_NAMES = (
    *("length", "lengths", "num_tokens", "n_tokens", "token_count", "tokens", "seq_len"),
    *("seqlen", "doc_length", "document_length", "input_ids"),
)
_READERS_RAISE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, OSError, EOFError, zlib.error),
    *(ImportError, NotImplementedError, RecursionError),
)


def read_lengths(path: Path) -> Int64 | Histogram:
    """Return [D] lengths of a file, or a histogram of them.

    Text has one length a line (``#`` begins a comment), JSON a list, JSON lines a length, a list or
    an object each, CSV what ``read_csv`` says, a list or a histogram; also numpy and Parquet. All
    but the last may be gzipped. Of several columns of Parquet and JSON lines the one with a usual
    name is taken, else the only one that can be lengths; a list counts as its length.

    Raises:
        ValueError: it cannot be read as lengths of at least 1; the message names the file.
    """
    try:
        found = _read(path)
        return found if isinstance(found, Histogram) else checked(found)
    except _READERS_RAISE as error:
        deep = isinstance(error, RecursionError)
        said = "it is nested too deeply" if deep else " ".join(str(error).split())
        said = said or type(error).__name__
        raise ValueError(f"lengths={path}: must hold lengths of at least 1: {said}") from error


def checked(values: NDArray[Any]) -> Int64:
    """Return lengths as int64.

    Raises:
        ValueError: they are not a list of integers of at least 1; names the first that is none.
    """
    if values.ndim != 1:
        raise ValueError(f"an array of shape {values.shape} is not a list of lengths")
    if not len(values):
        raise ValueError("there are none")
    # numpy counts spans of time among integers.
    if values.dtype.kind not in "iu":
        whole = values == np.floor(values) if values.dtype.kind == "f" else np.ones(1, dtype=bool)
        first = int(np.argmin(whole))
        raise ValueError(
            f"document {first} has length {values[first]}, which is of type {values.dtype}, not an "
            "integer number of tokens"
        )
    bad = np.flatnonzero((values < 1) | (values > LONGEST))
    if len(bad):
        first = int(bad[0])
        raise ValueError(
            f"document {first} has length {values[first]}, not in 1..{LONGEST}; drop such ones"
        )
    return values.astype(np.int64)


def _read(path: Path) -> NDArray[Any] | Histogram:
    suffix = [part for part in map(str.lower, path.suffixes) if part != ".gz"][-1:]
    with path.open("rb") as file:
        magic = file.read(6)
    if suffix == [".parquet"] or magic[:4] == b"PAR1":
        return _parquet(path)
    raw = path.read_bytes()
    if path.suffix.lower() == ".gz" or magic[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    if suffix == [".npy"] or raw[:6] == b"\x93NUMPY":
        return np.asarray(np.load(io.BytesIO(raw), allow_pickle=False))
    text = raw.decode("utf-8-sig")
    if suffix == [".csv"]:
        return read_csv(text)
    if suffix == [".json"]:
        return _measured(json.loads(text))
    if suffix in ([".jsonl"], [".ndjson"]):
        return _measured(_records(text))
    return _text(text)


def _text(text: str) -> NDArray[Any]:
    lengths = []
    # str.splitlines would also end lines at characters that JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if word := line.partition("#")[0].strip():
            try:
                lengths.append(int(word))
            except ValueError:
                raise ValueError(f"line {number}: {word[:40]!r} is not an integer") from None
    return np.array(lengths, dtype=np.int64)


def _parquet(path: Path) -> NDArray[Any]:
    """Return the column of lengths, or the lengths of its lists."""
    try:
        parquet: Any = import_module("pyarrow.parquet")
        types: Any = import_module("pyarrow.types")
        compute: Any = import_module("pyarrow.compute")
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow: pip install pyarrow") from error
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    kinds = {field.name: field.type for field in file.schema_arrow}
    integers = [name for name, kind in kinds.items() if types.is_integer(kind)]
    lists = [
        name
        for name, kind in kinds.items()
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    ]
    shown = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    name = _choose(integers, lists, list(kinds), shown)
    if names.count(name) > 1:
        raise ValueError(f"{names.count(name)} columns are named {name}; rename all but one")
    column = file.read(columns=[name]).column(name)
    if column.null_count:
        first = int(np.argmax(column.is_null().to_numpy()))
        raise ValueError(f"document {first} has no value in column {name}; drop such rows")
    if name in lists:
        column = compute.list_value_length(column)
    return np.asarray(column.to_numpy())


def _records(text: str) -> list[Any]:
    """Return the value of every line that is a length or has one."""
    records = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not records or not isinstance(records[0], dict):
        return records
    first = records[0]
    integers = [key for key, value in first.items() if type(value) is int]
    lists = [key for key, value in first.items() if isinstance(value, list)]
    name = _choose(integers, lists, list(first), ", ".join(first))
    for index, record in enumerate(records):
        if not isinstance(record, dict) or name not in record:
            raise ValueError(f"document {index} has no {name!r}")
    return [record[name] for record in records]


def _measured(values: Any) -> NDArray[Any]:
    """Return lengths of decoded JSON: integers as they are, lists as their lengths."""
    if not isinstance(values, list):
        raise ValueError(f"a {type(values).__name__} is not a list of lengths")
    found = [len(value) if isinstance(value, list) else value for value in values]
    for index, value in enumerate(found):
        if type(value) is not int:
            raise ValueError(f"{value!r:.60} of document {index} is not an integer")
    return np.array(found, dtype=np.int64)


def _choose(integers: Sequence[str], lists: Sequence[str], names: Sequence[str], shown: str) -> str:
    """Return the name of the column of lengths."""
    known = [name for name in _NAMES if name in names]
    if known:
        return known[0]
    for able in (integers, lists):
        if len(able) == 1:
            return able[0]
    raise ValueError(f"which column is lengths? Name it 'length'; there are: {shown or 'none'}")
