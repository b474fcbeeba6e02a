"""Figures as short texts for a terminal. What a job says of itself is never taken for markup."""

import math
from collections.abc import Sequence

from rich.markup import escape

_BARS = "▁▂▃▄▅▆▇█"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plain(text: object) -> str:
    """Return a text that a terminal shows as it is: no markup, no control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in str(text)))


def bytes_text(num_bytes: float) -> str:
    """Return a size, such as ``3.4 MiB``."""
    power = min(int(math.log(max(num_bytes, 1), 1024)), len(_UNITS) - 1)
    return f"{num_bytes / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"


def duration_text(seconds: float) -> str:
    """Return a time in its two largest units, such as ``3 h 5 min``."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{seconds:.0f} s"


def number_text(value: float | None, digits: int = 2) -> str:
    """Return a number, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the newest values as bars from the least to the greatest; a gap is a space."""
    newest = list(values[-width:])
    known = [value for value in newest if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if v is None else _BARS[round((v - low) * scale)] for v in newest)
