"""Files of lengths give their own lengths, in every format, or say what is wrong with them."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike

from benchmarks.length_files import read_lengths
from tests.benchmark_runs import figures_of, run_benchmark

LENGTHS = (np.random.default_rng(0).lognormal(6, 1.5, 500).astype(np.int64) + 1).tolist()
SIZE = ("--tokens", "4096", "--batch", "16", "--pool", "4", "--steps", "3")


def _npy(dtype: DTypeLike, lengths: Sequence[float] = LENGTHS) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(lengths, dtype=dtype))
    return buffer.getvalue()


def _csv() -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([("id", "length"), *enumerate(LENGTHS)])
    return buffer.getvalue().encode()


def _parquet(columns: Callable[[], dict[str, Any]]) -> Callable[[], bytes]:
    return lambda: _parquet_of(list(columns().values()), list(columns()))


def _parquet_of(columns: list[Any], names: list[str]) -> bytes:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table([arrow.array(own) for own in columns], names), buffer)
    return buffer.getvalue()


TEXT = "\n".join(map(str, LENGTHS)).encode()
# Characters at which str.splitlines, but no JSON lines, end a line.
ODD = "a\u2028b\u2029c\x85d"
RECORDS = "\n".join(
    json.dumps({"text": ODD, "length": length}, ensure_ascii=False) for length in LENGTHS
)
FILES: dict[str, Callable[[], bytes]] = {
    "own.txt": lambda: TEXT,
    "own.txt.gz": lambda: gzip.compress(TEXT),
    "gzipped-without-suffix": lambda: gzip.compress(TEXT),
    "OWN.TXT": lambda: TEXT,
    "OWN.CSV.GZ": lambda: gzip.compress(_csv()),
    "gzipped.csv": lambda: gzip.compress(_csv()),
    "own.JSONL": RECORDS.encode,
    "windows.csv": lambda: b"\xef\xbb\xbf" + _csv(),
    "windows.txt": lambda: b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n") + b"\r\n",
    "own.npy": lambda: _npy(np.int64),
    "narrow.npy": lambda: _npy(np.uint32),
    "own.json": lambda: json.dumps(LENGTHS).encode(),
    "plain.jsonl": lambda: TEXT,
    "records.jsonl": RECORDS.encode,
    "records.jsonl.gz": lambda: gzip.compress(RECORDS.encode()),
    "own.csv": _csv,
    "column.csv": lambda: TEXT,
    "own.parquet": _parquet(lambda: {"id": LENGTHS[::-1], "num_tokens": LENGTHS}),
    "only.parquet": _parquet(lambda: {"text": ["a"] * len(LENGTHS), "whatever": LENGTHS}),
    "lists.parquet": _parquet(lambda: {"input_ids": [[0] * length for length in LENGTHS]}),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_lengths(tmp_path: Path, name: str) -> None:
    """One list of lengths is the same in every format, and so are the figures that follow."""
    path = tmp_path / name
    path.write_bytes(FILES[name]())

    found = read_lengths(path)

    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int64
    assert found.tolist() == LENGTHS


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.txt": (lambda: b"", "there are none"),
    "zero.txt": (lambda: b"5\n0\n", "document 1 has length 0, not in 1.."),
    "negative.txt": (lambda: b"-3\n", "document 0 has length -3"),
    "float.txt": (lambda: b"5\n3.0\n", "line 2: '3.0' is not an integer"),
    "huge.txt": (lambda: b"9" * 30, "too large"),
    "float.npy": (lambda: _npy(np.float64, [5, 1.5]), "document 1 has length 1.5, which is of"),
    "whole.npy": (lambda: _npy(np.float64, [5, 6]), "document 0 has length 5.0, which is of type"),
    "bool.npy": (lambda: _npy(np.bool_), "document 0 has length True, which is of type bool"),
    "span.npy": (lambda: _npy("m8[s]"), "which is of type timedelta64[s], not an integer"),
    "date.npy": (lambda: _npy("M8[s]"), "which is of type datetime64[s], not an integer"),
    "unsigned.npy": (lambda: _npy(np.uint64, [5, 1 << 63]), "document 1 has length 92233720368"),
    "feed.txt": (lambda: b"5\n6\x0c7\n", "line 2: '6\\x0c7' is not an integer"),
    "deep.json": (lambda: b"[" * 100_000 + b"]" * 100_000, "it is nested too deeply"),
    "deep.jsonl": (lambda: b"5\n" + b"[" * 3000 + b"]" * 3000, "it is nested too deeply"),
    "deep-open.json": (lambda: b"[" * 100_000, "it is nested too deeply"),
    "long.json": (lambda: b'["' + b"x" * 9999 + b'"]', "x of document 0 is not an integer"),
    "long.csv": (lambda: b'length,text\n5,"' + b"x" * 131_073 + b'"\n', "line 2: field larger"),
    "cut.gz": (lambda: gzip.compress(TEXT)[:50], "ended before"),
    "two.csv": (
        lambda: b"a,b\n1,2\n",
        "columns a, b: neither a list of lengths nor a histogram",
    ),
    "range.csv": (lambda: b'range,count\n"[0, 9]",1\n"x",2\n', "'x' is not a range"),
    "zeros.csv": (lambda: b'range,count\n"[0, 0]",1\n', "range [0, 0] holds no length"),
    "some.jsonl": (lambda: b'{"length": 1}\n{"text": 2}\n', "document 1 has no 'length'"),
    "true.jsonl": (lambda: b"true\n", "True of document 0 is not an integer"),
    "two.parquet": (
        _parquet(lambda: {"a": [1], "b": [2]}),
        "there are: a (int64), b (int64)",
    ),
    "float.parquet": (_parquet(lambda: {"length": [1.0, 1.5]}), "document 1 has length 1.5, which"),
    "null.parquet": (
        _parquet(lambda: {"length": [1, None]}),
        "document 1 has no value in column length",
    ),
    "twice.parquet": (
        lambda: _parquet_of([[1], [2]], ["length", "length"]),
        "2 columns are named length; rename all but one",
    ),
    "spans.parquet": (
        _parquet(lambda: {"length": np.array([5], "m8[s]")}),
        "document 0 has length 5 seconds, which is of type timedelta64[s]",
    ),
    "empty.parquet": (_parquet(lambda: {"length": np.zeros(0, np.int32)}), "there are none"),
    "text.parquet": (lambda: b"5\n", "Parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(tmp_path: Path, name: str) -> None:
    """What holds no lengths is a ``ValueError`` of one line that names the file and the fault."""
    path = tmp_path / name
    path.write_bytes(BAD[name][0]())

    with pytest.raises(ValueError, match="must hold lengths of at least 1") as error:
        read_lengths(path)

    assert str(path) in str(error.value)
    assert BAD[name][1] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["own.txt.gz", "own.npy", "own.parquet"])
def test_files_are_measured(tmp_path: Path, name: str) -> None:
    """The command takes a file as it takes a name."""
    path = tmp_path / name
    path.write_bytes(FILES[name]())

    assert figures_of("--lengths", str(path), *SIZE)["imbalance"]["mean"] >= 0


@pytest.mark.parametrize("name", ["deep.json", "deep.jsonl", "long.csv", "span.npy"])
def test_the_command_says_so_in_one_line(tmp_path: Path, name: str) -> None:
    """What no reader can read ends with code 2 and no traceback."""
    path = tmp_path / name
    path.write_bytes(BAD[name][0]())
    done = run_benchmark("placement", "--lengths", str(path), *SIZE)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert BAD[name][1] in done.stderr
