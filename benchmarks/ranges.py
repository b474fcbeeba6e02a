"""Numbers and ranges of lengths, as people write them in tables.

K and M are 1,024 and 1,048,576 tokens. A range without an end goes to 1 Mi tokens; where it begins
beyond, it is the one length that it begins with.
"""

import math
import re
from typing import NamedTuple

# Where a range without an end ends.
OPEN_END = 1 << 20

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?:[kKmM]i?)?"
_INFINITY = r"\+?(?:inf(?:inity)?|∞)"
_END = rf"{_NUMBER}|{_INFINITY}"
# "[11, 50]" or "(10, 50]": a round bracket leaves its end out. Commas part numbers only here.
_BRACKETS = re.compile(rf"([\[(])\s*({_NUMBER})\s*[,;:]\s*({_END})\s*([\])])", re.IGNORECASE)
_DASH = re.compile(rf"({_NUMBER})\s*(?:[-:~\u2013\u2014]|\.\.|to)\s*({_END})", re.IGNORECASE)
_ABOVE = re.compile(rf"(>=|≥|>)\s*({_NUMBER})|({_NUMBER})\s*\+")
_BELOW = re.compile(rf"(<=|≤|<)\s*({_NUMBER})")


class Range(NamedTuple):
    """The first and last length of a bin."""

    low: float
    high: float


def closed(low: float, high: float) -> Range:
    """Return a range with an end, also where ``high`` is infinite."""
    return Range(low, max(OPEN_END, low) if high == math.inf else math.floor(high))


def number(text: str) -> float | None:
    """Return what a field counts, or ``None`` where it is no number; ``1,024`` and ``1K`` are."""
    text = text.strip()
    if not re.fullmatch(_NUMBER, text):
        return None
    digits = text.rstrip("kKmMi ")
    return float(digits.replace(",", "")) * _UNITS[text[len(digits) :].strip().lower()[:1]]


def is_infinite(text: str) -> bool:
    """Whether a field says that there is no end."""
    return re.fullmatch(_INFINITY, text.strip(), re.IGNORECASE) is not None


def parse_range(text: str) -> Range | None:
    """Return the range that a field is, or ``None``."""
    text = text.strip()
    if match := _BRACKETS.fullmatch(text):
        left, low, high, right = match.groups()
        begin, end = _value(low), _value(high)
        first = math.floor(begin) + 1 if left == "(" else math.ceil(begin)
        return closed(first, math.ceil(end) - 1 if right == ")" and end < math.inf else end)
    if match := _DASH.fullmatch(text):
        begin, end = map(_value, match.groups())
        # Falling numbers are something else, such as a month.
        return closed(math.ceil(begin), end) if begin <= end else None
    if match := _ABOVE.fullmatch(text):
        sign, above, least = match.groups()
        begin = _value(above or least)
        return closed(math.floor(begin) + 1 if sign == ">" else math.ceil(begin), math.inf)
    if match := _BELOW.fullmatch(text):
        end = _value(match[2])
        return closed(0, math.ceil(end) - 1 if match[1] == "<" else end)
    return None


def _value(text: str) -> float:
    value = number(text)
    return math.inf if value is None else value
