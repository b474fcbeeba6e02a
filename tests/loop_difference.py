"""Where two nested values differ beyond rounding."""

import math
from collections.abc import Iterable
from typing import Any

# A collinear fit shares a coefficient evenly to about this; nobody decides by less.
_ROUNDING = 1e-4


def difference(one: Any, other: Any, at: str = "") -> str:
    """Return the first place at which two values differ and both values, empty if none does."""
    if isinstance(one, float) and isinstance(other, float):
        alike = math.isclose(one, other, rel_tol=_ROUNDING) or one is other
        return "" if alike else f"{at}: {one} and {other}"
    inner, its = _parts(one), _parts(other)
    if inner is None or its is None or inner.keys() != its.keys():
        return "" if one == other else f"{at}: {one!s:.200} and {other!s:.200}"
    return _first(difference(inner[key], its[key], f"{at}.{key}") for key in inner)


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return what a table or a list holds, None for anything else."""
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list | tuple) else None


def _first(found: Iterable[str]) -> str:
    return next(filter(None, found), "")
