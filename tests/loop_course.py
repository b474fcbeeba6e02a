"""The course of a simulated job: what every step truly took, and what it would have at home.

Shapes: T steps.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One step, by the truth and without noise, and what the balancer says right after it.

    Attributes:
        version: of the policy that ranks ran; ``latest``: the newest published.
        slowest, mean: kernel seconds of ranks; ``home_slowest``, ``home_mean``: of the same
            sequences under plain Ulysses.
        speeds: of ranks that the balancer says differ from nominal.
    """

    tick: int
    version: int
    latest: int
    mode: str
    slowest: float
    mean: float
    home_slowest: float
    home_mean: float
    speeds: dict[int, float]


@dataclass(kw_only=True)
class Course:
    """All moments so far.

    ``harms`` are (tick of publishing, version) of harmful policies that were forced in.
    """

    moments: list[Moment] = field(default_factory=list)
    harms: list[tuple[int, int]] = field(default_factory=list)

    @property
    def skew(self) -> Float64:
        """[T] slowest over mean."""
        return self._column("slowest") / self._column("mean")

    @property
    def versions(self) -> int:
        """How many policies were published."""
        return self.moments[-1].latest

    def over_home(self, last: int) -> float:
        """Return the slowest ranks' seconds over plain Ulysses' in the newest steps."""
        slowest, home = self._column("slowest"), self._column("home_slowest")
        return float(slowest[-last:].sum() / home[-last:].sum())

    def skew_over_home(self, last: int) -> float:
        """Return mean skew over plain Ulysses' in the newest steps."""
        home = self._column("home_slowest") / self._column("home_mean")
        return float(self.skew[-last:].mean() / home[-last:].mean())

    def flagged(self, begin: int = 0) -> set[int]:
        """Return ranks whose speed was ever said to differ, from a tick on."""
        return {rank for moment in self.moments[begin:] for rank in moment.speeds}

    def named_after(self, rank: int, onset: int) -> int | None:
        """Return how many steps after its onset a slow rank was named."""
        for moment in self.moments[onset:]:
            if moment.speeds.get(rank, 1.0) < 1.0:
                return moment.tick - onset + 1
        return None

    def even_after(self, onset: int, *, below: float, window: int) -> int | None:
        """Return after how many steps mean skew over a window came and stayed below a bound."""
        skew = self.skew[onset:]
        means = np.convolve(skew, np.ones(window) / window, mode="valid")
        above = np.flatnonzero(means >= below)
        first = int(above[-1]) + 1 if len(above) else 0
        return first if first < len(means) else None

    def steps_under(self, version: int) -> int:
        """Return for how many steps ranks ran a policy."""
        return sum(moment.version == version for moment in self.moments)

    def _column(self, name: str) -> Float64:
        return np.array([getattr(moment, name) for moment in self.moments])
