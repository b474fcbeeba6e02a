"""The slowdown of every rank in every step as bytes: a picture's worth of numbers in one answer.

Little-endian: the characters ``LSD1``; S and W as 32-bit integers and four bytes of nothing; [S]
step numbers as 64-bit floats; [S, W] slowdowns in thousandths as 16-bit integers.

Shapes: S steps, W ranks.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libra.balancer.step_record import Float64, StepRecord

MAGIC = b"LSD1"
# Slowdowns in one answer: 600 steps of 6,990 ranks.
MAX_CELLS = 1 << 22
_MOST = 2**16 - 1


def permille(slowdown: Float64) -> NDArray[np.uint16]:
    """Return slowdowns in thousandths, as far as 16 bits reach."""
    return np.clip(np.rint(1000 * slowdown), 0, _MOST).astype("<u2")


def affordable(last: int, world_size: int) -> int:
    """Return how many of the ``last`` steps fit into one answer, at least one."""
    return min(last, max(1, MAX_CELLS // max(1, world_size)))


def slowdown_body(records: Sequence[StepRecord], world_size: int) -> bytes:
    """Return the slowdowns of these steps; callable from any thread.

    A step of another number of ranks has no row of this width, and is left out.
    """
    fitting = [record for record in records if len(record.kernel_seconds) == world_size]
    head = struct.pack("<4sIII", MAGIC, len(fitting), world_size, 0)
    steps = np.array([record.step for record in fitting], dtype="<f8")
    rows = [permille(record.slowdown).tobytes() for record in fitting]
    return b"".join((head, steps.tobytes(), *rows))
