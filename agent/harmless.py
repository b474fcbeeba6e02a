"""Keep the agent's own faults out of the training loop."""

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class MayFail(Protocol):
    """What can be switched off by a fault of its own."""

    failed: bool


Owner = TypeVar("Owner", bound=MayFail)


def harmless(
    default: R,
) -> Callable[[Callable[Concatenate[Owner, P], R]], Callable[Concatenate[Owner, P], R]]:
    """Let a method return ``default`` in place of raising; its owner is off from then on.

    The first fault is logged with its traceback, and there is no second.
    """

    def decorate(
        method: Callable[Concatenate[Owner, P], R],
    ) -> Callable[Concatenate[Owner, P], R]:
        @functools.wraps(method)
        def guarded(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if self.failed:
                return default
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self.failed = True
                logger.exception("The agent failed and is off from now on; training goes on.")
                return default

        return guarded

    return decorate
