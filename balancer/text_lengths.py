"""Lengths in lines of text, read some megabytes at a time."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from libra.balancer.packed import Integers
from libra.balancer.rows import checked_rows, complaint, joined

_CHUNK_BYTES = 1 << 22
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def line_chunks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of a line, from 1, and the lines from there on; unzips what is gzipped.

    Raises:
        ValueError: a file that cannot be unzipped.
    """
    first = 1
    try:
        with (
            gzip.open(path)
            if path.suffix.lower() == ".gz" or is_gzipped(path)
            else path.open("rb") as file
        ):
            while lines := file.readlines(_CHUNK_BYTES):
                if first == 1:
                    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                yield first, lines
                first += len(lines)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"lengths={path}: is not a whole gzip file: {error}") from error


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether these are the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def is_gzipped(path: Path) -> bool:
    """Whether a file is gzipped, whatever its name says."""
    return begins_with(path, _GZIP)


def read_text(path: Path) -> Integers:
    """Return the lengths of a text with one a line; ``#`` begins a comment.

    Raises:
        ValueError: a line that is no positive integer; names it.
    """
    source = f"lengths={path}"
    return joined([_lengths(lines, first, source) for first, lines in line_chunks(path)], source)


def _lengths(lines: list[bytes], first: int, source: str) -> Integers:
    try:
        values = np.fromiter(map(int, filter(None, _bare(lines))), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise ValueError(_wrong(lines, first, source)) from error
    if len(values) and values.min() < 1:
        raise ValueError(_wrong(lines, first, source))
    return checked_rows(values, source, first)


def _bare(lines: list[bytes]) -> Iterable[bytes]:
    """Return lines without comments and white space."""
    if b"#" in b"".join(lines):
        lines = [line.partition(b"#")[0] for line in lines]
    return map(bytes.strip, lines)


def _wrong(lines: list[bytes], first: int, source: str) -> str:
    """Return the complaint about the first line that is no length."""
    for number, line in enumerate(_bare(lines), start=first):
        try:
            value = np.int64(int(line)) if line else 1
        except (ValueError, OverflowError):
            text = line[:40].decode(errors="replace")
            return (
                f"{source}, line {number}: {text!r} must be one integer, the tokens of a document"
            )
        if value < 1:
            return f"{source}, line {number}: {complaint(int(value))}"
    raise AssertionError("a line was wrong")
