"""Reads a trace from Parquet or CSV, gzipped or not, and the mesh of its job from YAML.

Shapes: N operations.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import yaml

from libra.balancer.trace import Float64, Int64, Trace, make_trace

_MUST_BE_KNOWN = ("dp_rank", "stage", "rank", "step")
# Only some kinds of operations have these.
_MAY_LACK = ("mc", "gmc", "mb_id")
_SECONDS = ("start_ts", "duration")
_COLUMNS = (*_MUST_BE_KNOWN, "optype", *_SECONDS, "seq_id", *_MAY_LACK)
_SIZES = {
    "dp_size": "dp_size",
    "pp_size": "pp_size",
    "dsp_size": "cp_size",
    "cp_size": "cp_size",
    "tp_size": "tp_size",
    "vpp_size": "vpp_size",
    "world_size": "world_size",
}


def read_trace(path: Path, meta: Path | None = None) -> Trace:
    """Return a recorded job.

    Args:
        path: Parquet or CSV with columns dp_rank, stage, rank, step, optype, start_ts and duration
            (seconds), seq_id, mc, mb_id and gmc.
        meta: YAML with the sizes of the mesh; without it the rows give them.

    Raises:
        ValueError: a file is missing, is something else, or holds what cannot be; one line.
    """
    sizes = {} if meta is None else read_meta(meta)
    source = f"trace={path}"
    table = _read_table(path, source)
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(
            f"{source}: has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, table.column_names))}"
        )
    if not table.num_rows:
        raise ValueError(f"{source}: has no rows; record at least one step")
    numbers = {name: _integers(table, name, source) for name in (*_MUST_BE_KNOWN, *_MAY_LACK)}
    seconds = {name: _floats(table, name, source) for name in _SECONDS}
    return make_trace(numbers, seconds, _names(table, source), sizes, source)


def read_meta(path: Path) -> dict[str, int]:
    """Return the sizes that a meta file gives.

    Raises:
        ValueError: no such file, not YAML, or a size that is no positive integer.
    """
    source = f"meta={path}"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{source}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{source}: must hold lines such as 'dp_size: 8'")
    sizes = {}
    for name, own in _SIZES.items():
        if name not in content:
            continue
        size = content[name]
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{source}: {name}={size!r}: must be a positive integer")
        sizes[own] = size
    return sizes


def _read_table(path: Path, source: str) -> Any:
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head == b"PAR1" or path.suffix == ".parquet":
            with pq.ParquetFile(path) as parquet:
                names = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
                return parquet.read(columns=names)
        compression = "gzip" if head[:2] == b"\x1f\x8b" else None
        with pa.input_stream(str(path), compression=compression) as stream:
            return pacsv.read_csv(stream)
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise ValueError(f"{source}: cannot be read: {why}") from error
    except (pa.ArrowException, EOFError) as error:
        raise ValueError(
            f"{source}: is neither whole Parquet nor CSV: {' '.join(str(error).split())}; "
            f"record or copy it again"
        ) from error


def _integers(table: Any, name: str, source: str) -> Int64:
    """Return a column [N]; -1 where one of those that may be absent is."""
    column = table.column(name)
    if pa.types.is_null(column.type):
        column = column.cast(pa.int64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ValueError(f"{source}: column {name!r} is {column.type}; must be whole numbers")
    if pa.types.is_floating(column.type):
        column = pc.call_function(
            "if_else", [pc.call_function("is_nan", [column]), pa.scalar(None, column.type), column]
        )
    if column.null_count and name not in _MAY_LACK:
        raise ValueError(f"{source}: column {name!r} lacks {column.null_count} values; fill them")
    try:
        values: Int64 = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
    except pa.ArrowException as error:
        raise ValueError(f"{source}: column {name!r} must be whole numbers: {error}") from error
    return np.array(values)


def _floats(table: Any, name: str, source: str) -> Float64:
    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ValueError(f"{source}: column {name!r} is {column.type}; must be numbers of seconds")
    return np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(), dtype=np.float64)


def _names(table: Any, source: str) -> tuple[Int64, tuple[str, ...]]:
    """Return kinds of operations as indices [N] into their names."""
    column = table.column("optype")
    try:
        column = column.cast(pa.string()).dictionary_encode()
    except pa.ArrowException as error:
        raise ValueError(f"{source}: column 'optype' is {column.type}; must be text") from error
    if column.null_count:
        raise ValueError(f"{source}: column 'optype' lacks {column.null_count} values; fill them")
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    names = tuple(str(name) for name in whole.dictionary.to_pylist())
    return np.asarray(whole.indices.to_numpy(), dtype=np.int64), names
