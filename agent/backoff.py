"""Pace the calls to a balancer that fails: exponential delays with jitter, and a breaker."""

import logging
import random

logger = logging.getLogger(__name__)

# With 1 s at first and 30 s at most, the delay has reached its most by then.
OPEN_AFTER = 5


class Backoff:
    """Tell how long to wait after each failure in a row.

    After ``OPEN_AFTER`` failures the breaker is open: one probe every ``max_delay_s``, until a
    success closes it. Opening and closing are logged once each, not every failure.

    Args:
        name: what is failing, for the log.
        first_delay_s: delay after the first failure, doubled by each further one.
        max_delay_s: the longest delay.
        rng: of the jitter; a delay is cut by up to half, so that ranks do not call in step.
    """

    def __init__(
        self,
        name: str,
        *,
        first_delay_s: float = 1.0,
        max_delay_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        self.failures = 0
        self._name = name
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._random = rng or random.Random()

    @property
    def open(self) -> bool:
        return self.failures >= OPEN_AFTER

    def succeeded(self) -> None:
        """Note a success."""
        if self.open:
            logger.info("%s works again after %d failures.", self._name, self.failures)
        self.failures = 0

    def failed(self, reason: object, *, retry_after_s: float = 0.0) -> float:
        """Note a failure and return the seconds to wait; never less than ``retry_after_s`` asks,
        within ``max_delay_s``."""
        self.failures += 1
        if self.failures == OPEN_AFTER:
            logger.warning(
                "%s failed %d times in a row (%s); training goes on, and it is tried every %g s.",
                self._name,
                self.failures,
                reason,
                self._max_delay_s,
            )
        delay_s = self._max_delay_s
        if not self.open:
            delay_s = min(delay_s, self._first_delay_s * 2.0 ** (self.failures - 1))
        delay_s *= self._random.uniform(0.5, 1.0)
        if retry_after_s > self._max_delay_s:
            return self._max_delay_s * self._random.uniform(0.75, 1.0)
        # All ranks may have been asked for the same time: they are spread over more.
        retry_after_s *= self._random.uniform(1.0, 1.25)
        return min(self._max_delay_s, max(delay_s, retry_after_s))
