"""Give memory that was freed back to the system.

The C library keeps what a burst took, and between blocks that live long it keeps ever more. Asking
it to give whole pages back takes a millisecond or two of a heap of hundreds of megabytes.
"""

import ctypes
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Return free pages to the system, where the C library (glibc) can; for any thread."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
