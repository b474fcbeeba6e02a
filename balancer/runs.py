"""Which launch of a job a report is of: a run and its restarts, as one growing number.

Pure. A run that was never seen begins a new attempt, whatever number it gives itself: a job that is
submitted anew under the same name starts from attempt 0, and must not count as late for ever.
"""

import msgspec

# So many runs back it is known that they were given up.
MAX_RUNS = 256


class Runs(msgspec.Struct, kw_only=True):
    """The launches of a job.

    Attributes:
        seen: the newest attempt of each run, those that began last at the end.
        run, attempt: the launch that reports are taken of; None before any.
    """

    seen: dict[str, int] = {}
    run: str | None = None
    attempt: int = 0

    def is_current(self, run: str, attempt: int) -> bool:
        return run == self.run and attempt == self.attempt

    def is_late(self, run: str, attempt: int) -> bool:
        """Is it a launch that was given up?"""
        return not self.is_current(run, attempt) and attempt <= self.seen.get(run, -1)

    def begin(self, run: str, attempt: int, ordinal: int) -> int:
        """Begin a launch that is neither current nor late; return its ordinal.

        Args:
            ordinal: of the launch before. The new one's is higher, and the run's own number where
                that is higher still: who knows no runs finds the numbers that the scheduler gave.
        """
        next_ordinal = attempt if self.run is None else max(ordinal + 1, attempt)
        self.seen.pop(run, None)
        self.seen[run] = attempt
        if len(self.seen) > MAX_RUNS:
            del self.seen[next(iter(self.seen))]
        self.run, self.attempt = run, attempt
        return next_ordinal
