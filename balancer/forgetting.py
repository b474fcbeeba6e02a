"""How much of the evidence of earlier steps still counts.

Evidence ages by the newest complete step, the *clock*, and not by the order of arrival: that is
what lets reports come in any order.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# Evidence further from the newest complete step than this is taken to be this far: a wild step
# number must neither drown other evidence nor wipe it.
_MAX_AHEAD_STEPS = 64
_MAX_BEHIND_STEPS = 4096


def remaining(steps: float, half_life_steps: float) -> float:
    """Return the weight that so many steps leave to what weighed 1."""
    return float(2.0 ** (-steps / half_life_steps))


def remaining_each(steps: Float64, half_life_steps: float) -> Float64:
    """Return the weights [n] that so many steps [n] leave to what weighed 1."""
    return np.asarray(np.exp2(-steps / half_life_steps), dtype=np.float64)


def steps_behind_each(clock: int | None, steps: Sequence[int | None]) -> Float64:
    """Return the ages [n] of what was measured in these steps."""
    if len(set(steps)) == 1:
        return np.full(len(steps), float(steps_behind(clock, steps[0])))
    return np.array([steps_behind(clock, step) for step in steps], dtype=np.float64)


def steps_behind(clock: int | None, step: int | None) -> int:
    """Return the age of what was measured in ``step``; below 0 if it is ahead of the clock."""
    if step is None or clock is None:
        return 0
    return min(max(clock - step, -_MAX_AHEAD_STEPS), _MAX_BEHIND_STEPS)


def passed_steps(clock: int | None, step: int) -> int:
    """Return how many steps to forget when ``step`` is complete; none for a wild number."""
    passed = 0 if clock is None else step - clock
    return passed if 0 < passed <= _MAX_BEHIND_STEPS else 0


def advanced(clock: int | None, step: int) -> int:
    """Return the clock once ``step`` is complete: it goes back only if it was far astray."""
    if clock is None or step > clock or clock - step > _MAX_BEHIND_STEPS:
        return step
    return clock
