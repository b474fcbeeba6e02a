"""One setting's value: from text, from TOML, back to TOML, and what of it may be shown."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_PASSWORD = re.compile(
    # Up to the last @: a password may hold one, and to hide too much does no harm.
    r"(?P<before>\w[\w+.-]*://[^/?#@:\s]*:)\S*(?=@)"
    r"|(?P<word>(?:password|passwd|pwd|sslpassword)=)[^&\s]+",
    re.IGNORECASE,
)
MASK = "***"


def from_text(kind: Any, text: str, choices: Sequence[str] = ()) -> Any:
    """Return what the text of a flag or variable means; ``ValueError`` says what may be."""
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        words = [word.strip() for word in text.split(",")]
        return tuple(from_text(inner, word, choices) for word in words if word)
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError("must be true or false")
        return text.lower() in _TRUE
    if kind is int:
        if not re.fullmatch(r"[+-]?\d[\d_]*", text.strip()):
            raise ValueError("must be an integer")
        return int(text)
    if kind is float:
        try:
            return _finite(float(text))
        except ValueError:
            raise ValueError("must be a number") from None
    return _chosen(text, choices)


def from_toml(kind: Any, value: Any, choices: Sequence[str] = ()) -> Any:
    """Return what a TOML value means; ``ValueError`` says what may be."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError("must be an array")
        inner = get_args(kind)[0]
        return tuple(from_toml(inner, item, choices) for item in value)
    if kind is float and type(value) in (int, float):
        return _finite(float(value))
    if type(value) is not kind:
        names = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
        raise ValueError(f"must be {names[kind]}")
    return _chosen(value, choices) if kind is str else value


def to_toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, str):
        # A string of JSON is one of TOML, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def masked(value: Any, *, secret: bool) -> Any:
    """Return what may be shown of a value: no secret, and no URL's password."""
    if isinstance(value, tuple):
        return tuple(masked(item, secret=secret) for item in value)
    if not isinstance(value, str) or not value:
        return value
    return MASK if secret else _PASSWORD.sub(_hide, value)


def _hide(found: re.Match[str]) -> str:
    return (found["before"] or found["word"]) + MASK


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _chosen(word: str, choices: Sequence[str]) -> str:
    if choices and word not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    return word
