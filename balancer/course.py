"""The course of one figure over a job's whole life, in a bounded number of points."""

import msgspec

MAX_POINTS = 256


class Course(msgspec.Struct, eq=False, kw_only=True):
    """A figure at steps ``every`` so many steps apart or more: the longer the job, the further."""

    steps: list[int] = []
    values: list[float] = []
    every: int = 1

    def note(self, step: int, value: float | None) -> None:
        """Keep a value if enough steps have passed; a step before the last one begins anew."""
        if value is None:
            return
        if self.steps and step < self.steps[-1]:
            # A new attempt does steps again, and a curve that runs back cannot be read.
            keep = sum(own < step for own in self.steps)
            del self.steps[keep:], self.values[keep:]
        if self.steps and step < self.steps[-1] + self.every:
            return
        if len(self.steps) == MAX_POINTS:
            self.steps, self.values = self.steps[::2], self.values[::2]
            self.every *= 2
        self.steps.append(step)
        self.values.append(value)
