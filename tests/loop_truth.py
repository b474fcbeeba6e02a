"""The machine as it really is: what kernel calls cost on each rank, and what a step then takes.

Shapes: W ranks; n kernel calls; F = 6 features; two directions, forward and backward.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import KernelKind
from tests.loop_plans import Work
from tests.simulated_job import BACKWARD, FORWARD, TRUTH

Float64 = NDArray[np.float64]

# Seconds of an exchange beyond waiting for peers: a message's latency, and a byte.
_LATENCY_S, _BYTE_S = 2e-4, 1e-10
_HICCUP = 5.0
# Of a step, apart from attention, in seconds.
_OTHER_S = 0.2


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """What one step took: [2, n] of kernel calls; [W] of ranks' waits; of the whole step."""

    calls: Float64
    waits: Float64
    step_s: float


class Truth:
    """True coefficients and speeds; events change them.

    Attributes:
        kinds: of the two kernels now.
        coefficients: [2, F] seconds per feature.
        slowness: [W] how many times as long each rank takes.
    """

    def __init__(self, seed: int, slowness: Float64) -> None:
        self._rng = np.random.default_rng((seed, 2))
        self.kinds = (FORWARD, BACKWARD)
        self.slowness = slowness
        self.throttle = 1.0
        self.coefficients = self._drawn()

    def change_backend(self) -> None:
        """From now on other kernels run, with costs of their own."""
        name = "varlen" if self.kinds[0].backend == FORWARD.backend else FORWARD.backend
        self.kinds = _on(name)
        self.coefficients = self._drawn()

    def expected(self, work: Work) -> Float64:
        """Return [W] kernel seconds without noise."""
        calls = work.features @ self.coefficients.sum(axis=0)
        return work.by_rank(calls) * self.slowness * self.throttle

    def measure(
        self, work: Work, rng: np.random.Generator, *, noise: float, jitter: float, hiccups: float
    ) -> StepSeconds:
        """Return what this step takes, noise included."""
        pace = self.slowness * self.throttle * np.exp(jitter * rng.standard_normal(work.ranks))
        calls = (self.coefficients @ work.features.T) * pace[work.rank]
        calls *= np.exp(noise * rng.standard_normal(calls.shape))
        calls = np.where(rng.random(calls.shape) < hiccups, _HICCUP * calls, calls)
        kernels = work.by_rank(calls.sum(axis=0))
        waits = _waits(work, kernels)
        step_s = _OTHER_S * np.exp(0.01 * rng.standard_normal()) + (kernels + waits).max()
        return StepSeconds(calls=calls, waits=waits, step_s=float(step_s))

    def _drawn(self) -> Float64:
        base = np.stack([TRUTH[FORWARD], TRUTH[BACKWARD]])
        return np.asarray(base * np.exp(0.4 * self._rng.standard_normal(base.shape)))


def _waits(work: Work, kernels: Float64) -> Float64:
    """Return [W] exposed waits: for the cell's slowest rank where something moves."""
    slowest = np.zeros(work.ranks)
    moving = work.cell >= 0
    np.maximum.at(slowest, work.cell[moving], kernels[moving])
    return np.where(
        moving,
        slowest[work.cell] - kernels + _LATENCY_S + _BYTE_S * work.sent_bytes,
        0.0,
    )


def _on(backend: str) -> tuple[KernelKind, KernelKind]:
    return replace(FORWARD, backend=backend), replace(BACKWARD, backend=backend)
