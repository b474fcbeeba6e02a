"""A file of lengths is read for what it holds, whatever exactly it is called."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from libra.balancer import text_lengths
from libra.balancer.lengths import load_lengths

MARK = b"\xef\xbb\xbf"
TEXT, RECORDS = b"5\n7\n", b'{"length": 5, "text": "a\xe2\x80\xa8b"}\n{"length": 7}\n'
NAMED: dict[str, bytes] = {
    "a.TXT": TEXT,
    "a.Txt.GZ": gzip.compress(TEXT),
    "mark.txt": MARK + TEXT,
    "mark.jsonl": MARK + RECORDS,
    "mark.txt.gz": gzip.compress(MARK + TEXT.replace(b"\n", b"\r\n")),
    "zipped.txt": gzip.compress(TEXT),
    "zipped.jsonl": gzip.compress(RECORDS),
    "zipped": gzip.compress(TEXT),
    "zipped.gz": gzip.compress(TEXT),
    "a.JSONL": RECORDS,
    "a.csv": TEXT,
    "a.CSV.gz": gzip.compress(TEXT),
    "lengths": b"# tokens\n" + TEXT,
}


@pytest.mark.parametrize("chunk_bytes", [1 << 22, 1])
@pytest.mark.parametrize("name", NAMED)
def test_files_are_known_by_what_they_hold(
    name: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Marks of byte order, suffixes in capitals or none, and gzip under any name change nothing."""
    monkeypatch.setattr(text_lengths, "_CHUNK_BYTES", chunk_bytes)
    (tmp_path / name).write_bytes(NAMED[name])

    assert load_lengths(tmp_path / name).tolist() == [5, 7]


@pytest.mark.parametrize("name", ["a.npy", "a.parquet"])
def test_binary_files_need_no_suffix(name: str, tmp_path: Path) -> None:
    """numpy and Parquet files say what they are; gzipped ones cannot be mapped, and are refused."""
    path = tmp_path / name
    if path.suffix == ".npy":
        np.save(path, np.array([5, 7]))
    else:
        pq.write_table(pa.table({"length": [5, 7]}), path)
    bare = path.rename(path.with_suffix(""))

    assert load_lengths(bare).tolist() == [5, 7]
    path.write_bytes(gzip.compress(bare.read_bytes()))
    with pytest.raises(ValueError, match=f"{path}: is gzipped; gunzip it"):
        load_lengths(path)


def test_folders_leave_out_what_is_hardly_lengths(tmp_path: Path) -> None:
    """Tables and files without a suffix beside lengths do not count unless they are named."""
    (tmp_path / "A.TXT").write_bytes(TEXT)
    for name in ("metadata.csv", "_SUCCESS"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "folder").mkdir()

    assert load_lengths(tmp_path).tolist() == [5, 7]
    assert load_lengths(tmp_path / "*[!T]").tolist() == [1, 1]
