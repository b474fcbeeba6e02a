"""Check numbers that users pass: numpy's integers are integers, fractions and words are not."""

import math
import operator
from typing import SupportsFloat, SupportsIndex


def integer(name: str, value: SupportsIndex, least: int = 0) -> int:
    """Return a plain integer; raise ``ValueError`` that names the setting where it is none."""
    try:
        own = operator.index(value)
    except TypeError:
        own = least - 1
    if own < least or isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be an integer of at least {least}")
    return own


def seconds(name: str, value: SupportsFloat) -> float:
    """Return positive finite seconds; raise ``ValueError`` that names the setting otherwise."""
    try:
        own = float(value)
    except (TypeError, ValueError):
        own = math.nan
    if not 0 < own < math.inf:
        raise ValueError(f"{name}={value!r}: must be positive and finite seconds")
    return own
