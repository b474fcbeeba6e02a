"""Named places where a test can make the balancer die, fail or wait. Off unless asked for.

``LIBRA_FAILPOINTS="before_commit=kill;during_restore=sleep(0.5)"`` arms places; ``=kill@3`` waits
for the third pass. The names are a closed list, so that a test cannot miss its place by a typo.
"""

import os
import re
import signal
import time
from collections.abc import Callable

from libra.balancer.storage import StoreError

VARIABLE = "LIBRA_FAILPOINTS"
POINTS = (
    "before_commit",
    "between_core_and_steps",
    "after_commit",
    "before_show",
    "after_show",
    "before_ack",
    "during_restore",
    "during_migration",
    "during_unload",
)
_ACTIONS = "kill, error, full or sleep(SECONDS), and @PASS after it"
_FORM = re.compile(r"(kill|error|full|sleep\(([0-9.]+)\))(?:@([0-9]+))?")

_armed: dict[str, Callable[[], None]] = {}


def failpoint(name: str) -> None:
    """Do what was armed for this place; nothing in all ordinary life."""
    act = _armed.get(name)
    if act is not None:
        act()


def arm(text: str) -> None:
    """Arm the places named in ``NAME=ACTION;...``, and no others.

    Raises:
        ValueError: an unknown name or action.
    """
    armed = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, action = part.partition("=")
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}={text!r}: {name!r} must be one of {', '.join(POINTS)}")
        form = _FORM.fullmatch(action)
        if form is None:
            raise ValueError(f"{VARIABLE}={text!r}: {action!r} must be {_ACTIONS}")
        kind, seconds, passes = form[1].partition("(")[0], form[2], int(form[3] or 1)
        armed[name] = _after(passes, _action(name, kind, float(seconds or 0)))
    _armed.clear()
    _armed.update(armed)


def _after(passes: int, act: Callable[[], None]) -> Callable[[], None]:
    left = passes

    def count() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            act()

    return count


def _action(name: str, kind: str, seconds: float) -> Callable[[], None]:
    def fail() -> None:
        why = "database or disk is full" if kind == "full" else "failed as told"
        raise StoreError(f"failpoint {name}: {why}")

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    actions = {"kill": kill, "sleep": lambda: time.sleep(seconds)}
    return actions.get(kind, fail)
