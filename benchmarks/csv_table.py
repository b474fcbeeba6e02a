"""The rows of a CSV, with or without a header, as columns that know their lines."""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.ranges import number, parse_range

Int64 = NDArray[np.int64]
Parsed = TypeVar("Parsed")

_INTEGER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)")
_SHOWN, _SHOWN_COLUMNS = 40, 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """One column.

    Attributes:
        name: in the header; its number, from 1, where there is none.
        fields: of all rows, without white space around them.
        lines: where each row ends in the file, from 1.
    """

    name: str
    fields: list[str]
    lines: list[int]

    def all_parse(self, parse: Callable[[str], object]) -> bool:
        """Whether ``parse`` returns ``None`` for no field."""
        return all(parse(field) is not None for field in self.fields)

    def integers(self) -> Int64:
        """Return the fields as integers.

        Raises:
            ValueError: one is none; names its line.
        """
        self.each(_INTEGER.fullmatch, "an integer")
        return np.array([int(field.replace(",", "")) for field in self.fields], dtype=np.int64)

    def each(self, parse: Callable[[str], Parsed | None], what: str) -> list[Parsed]:
        """Return the fields parsed.

        Raises:
            ValueError: ``parse`` returns ``None`` for one; names its line.
        """
        parsed = []
        for field, line in zip(self.fields, self.lines, strict=True):
            value = parse(field)
            if value is None:
                raise ValueError(f"line {line}: {field[:_SHOWN]!r} is not {what}")
            parsed.append(value)
        return parsed


@dataclass(frozen=True, kw_only=True)
class CsvTable:
    """A CSV's columns.

    Attributes:
        columns: none where there are no rows, not even a header.
        has_header: whether the first row is names.
    """

    columns: list[Column]
    has_header: bool

    def __str__(self) -> str:
        """Return the columns' names in one line."""
        shown = [own.name[:_SHOWN] for own in self.columns[:_SHOWN_COLUMNS]]
        more = ", ..." if len(self.columns) > _SHOWN_COLUMNS else ""
        named = "" if self.has_header else " (there is no header)"
        return ", ".join(shown) + more + named


def parse_csv(text: str) -> CsvTable:
    """Return the columns of a CSV; a row of one field that begins with # is a comment.

    The first row is the header where none of its fields is a number or a range.

    Raises:
        ValueError: not CSV, or a row has more fields than the first; names its line.
    """
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, row in _rows(text):
        width = len(rows[0]) if rows else len(row)
        if any(row[width:]):
            raise ValueError(f"line {line}: {len(row)} fields, the first row has {width}")
        lines.append(line)
        rows.append((row + [""] * width)[:width])
    if not rows:
        return CsvTable(columns=[], has_header=False)
    has_header = all(number(field) is None and parse_range(field) is None for field in rows[0])
    names = rows[0] if has_header else [str(index + 1) for index in range(len(rows[0]))]
    fields = list(zip(*rows[has_header:], strict=True)) or [()] * len(names)
    columns = [
        Column(name=name, fields=list(own), lines=lines[has_header:])
        for name, own in zip(names, fields, strict=True)
    ]
    return CsvTable(columns=columns, has_header=has_header)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of a row's last line, and its fields."""
    # str.splitlines would also end lines at characters that may stand in a text.
    reader = csv.reader(text.split("\n"), strict=True, skipinitialspace=True)
    try:
        for row in reader:
            fields = _joined([field.strip() for field in row])
            if any(fields) and not (len(fields) == 1 and fields[0].startswith("#")):
                yield reader.line_num, fields
    except csv.Error as error:
        open_quote = "; a quote is open" if "end of data" in str(error) else ""
        raise ValueError(f"line {reader.line_num}: {error}{open_quote}") from error


def _joined(fields: list[str]) -> list[str]:
    """Put ranges together that stand without quotes, [0 and 10]."""
    joined: list[str] = []
    for field in fields:
        if joined and re.fullmatch(r"[\[(][^\])]*", joined[-1]) and re.search(r"[\])]$", field):
            joined[-1] += f", {field}"
        else:
            joined.append(field)
    return joined
