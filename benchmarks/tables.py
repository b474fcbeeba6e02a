"""Figures as rows of named values, and rows as a table to paste into RESULTS.md."""

from collections.abc import Mapping, Sequence
from typing import Any

Value = float | int | str | None
Row = Mapping[str, Value]


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: a column for each name, in the order of first use."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(names))]
    lines = [_line(row, widths, rows[0]) for row in cells]
    rules = ("-" * width for width in widths)
    lines.insert(1, "| " + " | ".join(rules) + " |")
    return "\n".join(lines)


def flat(figures: Mapping[str, Any]) -> dict[str, Value]:
    """Return nested figures under names joined by commas."""
    found: dict[str, Value] = {}
    for name, value in figures.items():
        inner = flat(value) if isinstance(value, Mapping) else {"": value}
        found.update({f"{name}, {key}" if key else name: own for key, own in inner.items()})
    return found


def _line(texts: Sequence[str], widths: Sequence[int], first: Row) -> str:
    kinds = [first.get(name) for name in first]
    kinds += [None] * (len(texts) - len(kinds))
    padded = (
        text.ljust(width) if isinstance(kind, str) else text.rjust(width)
        for text, width, kind in zip(texts, widths, kinds, strict=True)
    )
    return "| " + " | ".join(padded) + " |"


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        # Three decimals for ratios; small seconds and shares keep three digits.
        return f"{value:.3f}" if not value or abs(value) >= 0.1 else f"{value:.3g}"
    return str(value)
