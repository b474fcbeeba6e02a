"""Since when a job is skewed: where the uneven steps begin that last until now."""

import msgspec

# What costs less is as even as kernels can be timed; diagnoses go by the same figure.
UNEVEN = 1.05
# Of so many steps in a row most decide, or one hiccup would begin it and one lull end it.
_WINDOW = 5


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    seconds: float
    uneven: bool


class Onset(msgspec.Struct, eq=False, kw_only=True):
    """The stretch of uneven steps that lasts until now, if there is one.

    Attributes:
        attempt: of the steps that it is judged by.
        newest: what is known of the last few steps.
        step: the first uneven one; None where steps are even.
        steps, seconds: since then, that step included.
    """

    attempt: int = -1
    newest: list[_Step] = []
    step: int | None = None
    steps: int = 0
    seconds: float = 0.0

    def note(self, attempt: int, step: int, skew: float, seconds: float) -> None:
        """Take in the next complete step; another attempt begins anew."""
        if attempt != self.attempt:
            self.attempt, self.newest, self.step = attempt, [], None
        self.newest = [
            *self.newest[1 - _WINDOW :],
            _Step(step=step, seconds=seconds, uneven=skew > UNEVEN),
        ]
        mostly = 2 * sum(own.uneven for own in self.newest) > len(self.newest)
        if not mostly:
            self.step, self.steps, self.seconds = None, 0, 0.0
        elif self.step is None:
            first = next(place for place, own in enumerate(self.newest) if own.uneven)
            since = self.newest[first:]
            self.step, self.steps = since[0].step, len(since)
            self.seconds = sum(own.seconds for own in since)
        else:
            self.steps += 1
            self.seconds += seconds
