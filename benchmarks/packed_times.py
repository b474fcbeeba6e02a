"""Measured times of packs of equal documents: a CSV's rows, by the shape of the kernel call.

A row is one fused call over ``documents`` documents of ``document_tokens`` tokens. Where ``cp`` is
above one, the call has the query rows that one of ``cp`` ranks holds of each document, head and
tail together; as the public tables were measured, it reads the keys that their last row reads on
average.

Shapes: n rows; F features.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.csv_table import Column, parse_csv
from libra.attention.cost import tile_features

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Parsed = TypeVar("Parsed", int, float)

_SHAPE = ("gpu_type", "q_heads", "kv_heads", "head_dim", "tp", "cp", "pack_tokens")
_NUMBERS = ("documents", "document_tokens")
_MILLISECONDS = "ms_per_pack"
COLUMNS = (*_SHAPE, *_NUMBERS, _MILLISECONDS)
_MOST_TOKENS = 1 << 30
# A call of more than an hour is no kernel call.
_MOST_MS = 3.6e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What calls have in common."""

    gpu_type: str
    q_heads: int
    kv_heads: int
    head_dim: int
    tp: int
    cp: int
    pack_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedTimes:
    """One shape's rows, by document tokens.

    Attributes:
        document_tokens: [n], ascending; equal ones are measured more than once.
        documents: [n] of a pack.
        seconds: [n] of a pack.
    """

    shape: Shape
    document_tokens: Int64
    documents: Int64
    seconds: Float64

    @property
    def features(self) -> Float64:
        """[n, F] features of each call, over all its documents."""
        rows, keys = tile_rows(self.document_tokens, self.shape.cp)
        return np.asarray(tile_features(keys - rows, keys) * self.documents[:, None], np.float64)

    @property
    def squares(self) -> Float64:
        """[n, 1] sum of squared document tokens."""
        squares = self.documents * np.square(self.document_tokens, dtype=np.float64)
        return np.asarray(squares, dtype=np.float64)[:, None]

    @property
    def every_other(self) -> Int64:
        """[n] fold of each row: 0 and 1 by turns from length to length."""
        return np.unique(self.document_tokens, return_inverse=True)[1].reshape(-1) % 2


def tile_rows(document_tokens: Int64, cp: int) -> tuple[Int64, Int64]:
    """Return query rows and keys of a rank's tile of each document.

    A rank holds L / cp rows, half of them from the document's beginning and half from its end:
    together they read as many keys as its tile with (L + L / cp) / 2 keys does.
    """
    tokens = np.asarray(document_tokens, dtype=np.int64)
    return tokens // cp, tokens * (cp + 1) // (2 * cp)


def read_packed(path: Path) -> list[PackedTimes]:
    """Return the rows of a CSV by shape, in a fixed order, whatever the order of its rows.

    Raises:
        ValueError: it cannot be read, lacks a column or a row, or holds an impossible figure.
    """
    try:
        table = parse_csv(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"packed={path}: {error}") from error
    columns = {column.name.strip().lower(): column for column in table.columns}
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise ValueError(f"packed={path}: has no column {', '.join(missing)}; it has {table}")
    if not table.columns[0].fields:
        raise ValueError(f"packed={path}: has no rows")
    try:
        return _by_shape(columns)
    except ValueError as error:
        raise ValueError(f"packed={path}: {error}") from error


def _by_shape(columns: dict[str, Column]) -> list[PackedTimes]:
    numbers = {name: _each(columns[name], _count) for name in (*_SHAPE[1:], *_NUMBERS)}
    seconds = np.array(_each(columns[_MILLISECONDS], _milliseconds)) * 1e-3
    _check_rows(columns, numbers)
    rows: dict[Shape, list[int]] = {}
    for row, gpu_type in enumerate(columns["gpu_type"].fields):
        shape = Shape(gpu_type=gpu_type, **{name: numbers[name][row] for name in _SHAPE[1:]})
        rows.setdefault(shape, []).append(row)
    tokens, documents = (np.array(numbers[name]) for name in ("document_tokens", "documents"))
    found = []
    for shape in sorted(rows, key=lambda own: [getattr(own, name) for name in _SHAPE]):
        own = np.array(rows[shape])
        # By seconds too: rounding then depends on no order of equal lengths.
        own = own[np.lexsort((seconds[own], documents[own], tokens[own]))]
        found.append(
            PackedTimes(
                shape=shape,
                document_tokens=tokens[own],
                documents=documents[own],
                seconds=seconds[own],
            )
        )
    return found


def _check_rows(columns: dict[str, Column], numbers: dict[str, list[int]]) -> None:
    for tokens, cp, line in zip(
        numbers["document_tokens"], numbers["cp"], columns["cp"].lines, strict=True
    ):
        if tokens < cp:
            raise ValueError(f"line {line}: document_tokens={tokens}: must be at least cp={cp}")


def _each(column: Column, parse: Callable[[str], Parsed]) -> list[Parsed]:
    parsed = []
    for field, line in zip(column.fields, column.lines, strict=True):
        try:
            parsed.append(parse(field))
        except ValueError as error:
            raise ValueError(f"line {line}: {column.name}={field[:40]!r}: {error}") from error
    return parsed


def _count(field: str) -> int:
    number = _number(field)
    if number != int(number) or not 1 <= number <= _MOST_TOKENS:
        raise ValueError(f"must be an integer in 1..{_MOST_TOKENS}")
    return int(number)


def _milliseconds(field: str) -> float:
    number = _number(field)
    if not 0 < number <= _MOST_MS:
        raise ValueError(f"must be above 0 and at most {_MOST_MS:g} ms")
    return number


def _number(field: str) -> float:
    try:
        number = float(field)
    except ValueError as error:
        raise ValueError("must be a number") from error
    if not math.isfinite(number):
        raise ValueError("must be finite")
    return number
