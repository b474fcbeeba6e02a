"""What must not reach a log: tokens, cookies, passwords in addresses."""

import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

HIDDEN = "[hidden]"
_SECRET_KEYS = re.compile(
    r"^(proxy-)?authorization$|^(set-)?cookie$|passw(or)?d|secret|^(access_|id_|refresh_)?token$",
    re.IGNORECASE,
)
_PATTERNS = (
    # Ours, also cut short; JSON web tokens; what follows a scheme in a header.
    (re.compile(r"libra_[a-z0-9]{8}_[A-Za-z0-9]+"), HIDDEN),
    (re.compile(r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\blibra_session=[^;\s'\"]+"), f"libra_session={HIDDEN}"),
    (re.compile(r"(?i)([?&](?:access_|id_)?token=)[^&#\s'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]+@"), rf"\1:{HIDDEN}@"),
)


def redact_text(text: str) -> str:
    """Return the text without anything that opens a door."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def redact(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a structured log's event without secrets, whatever its fields are called."""
    return {key: _clean(key, value) for key, value in event.items()}


def _clean(key: object, value: Any) -> Any:
    if key == "exc_info":
        return value  # its traceback is cleaned once it is text
    if isinstance(key, str) and _SECRET_KEYS.search(key) and value:
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes):
        return redact_text(value.decode("latin-1"))
    if isinstance(value, Mapping):
        return {inner: _clean(inner, part) for inner, part in value.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | bytes):
        # A header, as servers keep them.
        first = value[0].decode("latin-1") if isinstance(value[0], bytes) else value[0]
        return (value[0], _clean(first, value[1]))
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(None, part) for part in value]
    if isinstance(value, BaseException):
        return redact_text(repr(value))
    return value


class RedactingFormatter(logging.Formatter):
    """A formatter whose whole lines, tracebacks too, hold no secret."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))
