"""Jobs that are to think about their newest steps, one at a time.

A step of thousands of ranks takes as long to think about as a hundred reports to take in, and many
jobs may end a step at the same moment: reports and answers must come in between.
"""

import logging
from collections.abc import Callable

from libra.balancer.live_job import LiveJob

logger = logging.getLogger(__name__)


class Thoughts:
    """Let jobs think, in the order in which they were put here.

    Args:
        think: lets one job think; what it raises is logged.
    """

    def __init__(self, think: Callable[[LiveJob], None]) -> None:
        self._think = think
        self._waiting: dict[LiveJob, None] = {}

    def put(self, live: LiveJob) -> None:
        """Let a job think when its turn comes."""
        self._waiting[live] = None

    def one(self) -> bool:
        """Let one job think; return whether others wait."""
        live = next(iter(self._waiting), None)
        if live is not None:
            self.at_once(live)
        return bool(self._waiting)

    def at_once(self, live: LiveJob) -> None:
        """Let a job think now, if it is to: who looks at it sees all that it was told."""
        if live not in self._waiting:
            return
        del self._waiting[live]
        try:
            self._think(live)
        except Exception:
            logger.exception("Job %s cannot make sense of its newest steps.", live.job.name)
