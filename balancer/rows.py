"""Lengths as they come in from files: checked row by row, joined in a small type."""

from collections.abc import Sequence

import numpy as np

from libra.balancer.packed import Int64, Integers

# What readers put where a row has no value, or one beyond int64; no length is as small.
MISSING = int(np.iinfo(np.int64).min)
TOO_LARGE = MISSING + 1


def checked_rows(values: Int64, source: str, first: int) -> Integers:
    """Return lengths in a small type, none below 1.

    Args:
        values: lengths of rows that follow one another.
        source: the setting and file that they are from, for errors.
        first: number of the first row.

    Raises:
        ValueError: a row without a value, or of a length below 1; names it.
    """
    if len(values) and values.min() < 1:
        row = int(np.argmax(values < 1))
        raise ValueError(f"{source}, row {first + row}: {complaint(int(values[row]))}")
    small = len(values) and values.max() <= np.iinfo(np.uint32).max
    return values.astype(np.uint32) if small else values


def complaint(value: int) -> str:
    """Return what is wrong with a length below 1, and the remedy."""
    if value == MISSING:
        return "has no value; drop such rows"
    if value == TOO_LARGE:
        return f"length must be at most {np.iinfo(np.int64).max}; are these tokens?"
    return f"length {value} must be at least 1; drop empty documents"


def joined(parts: Sequence[Integers], source: str) -> Integers:
    """Return lengths that were read in parts as one array.

    Raises:
        ValueError: there are none.
    """
    filled = [part for part in parts if len(part)]
    if not filled:
        raise ValueError(f"{source}: holds no lengths")
    kinds = {part.dtype for part in filled}
    # numpy would join signed and unsigned ones to floats.
    return np.concatenate(filled, dtype=None if len(kinds) == 1 else np.int64)
