"""Ranks that lie: what a broken clock, a stuck agent or a replayed log makes of a true reading.

A liar lies in its own report only; what it makes its peers wait for is the truth.
"""

from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.loop_reading import Reading

LIES = ("random", "nan", "negative", "thousandfold", "frozen", "stuck", "replayed", "slower")
# How far back a replayed log lies, in steps.
_REPLAYED_STEPS = 12


class Liar:
    """One rank's way to lie, from the first reading it is shown."""

    def __init__(self, lie: str, rng: np.random.Generator) -> None:
        if lie not in LIES:
            raise ValueError(f"lie={lie!r}: must be one of {LIES}")
        self.lie = lie
        self._rng = rng
        self._past: deque[Reading] = deque(maxlen=_REPLAYED_STEPS)

    def tell(self, true: Reading) -> Reading:
        """Return what the rank says of a step."""
        self._past.append(true)
        seconds = true.seconds
        match self.lie:
            case "random":
                return _with(true, seconds * np.exp(2 * self._rng.standard_normal(seconds.shape)))
            case "nan":
                return _with(true, np.full_like(seconds, np.nan))
            case "negative":
                return _with(true, -seconds)
            case "thousandfold":
                # A clock in other units: all that it reads is a thousand times too long.
                told = _with(true, 1000 * seconds)
                return replace(told, step_s=1000 * true.step_s, wait_s=1000 * true.wait_s)
            case "stuck":
                return _with(true, self._stuck(seconds))
            case "slower":
                return _with(true, 1.5 * seconds)
            case "frozen":
                return _told_again(self._first(), true)
            case _:
                return _told_again(self._past[0], true)

    def _stuck(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return seconds of the first step, spread over calls whatever these computed."""
        whole = self._first().seconds.sum(axis=1, keepdims=True)
        return np.broadcast_to(whole / seconds.shape[1], seconds.shape)

    def _first(self) -> Reading:
        if not hasattr(self, "_frozen"):
            self._frozen = self._past[-1]
        return self._frozen


def _with(true: Reading, seconds: NDArray[np.float64]) -> Reading:
    return replace(true, seconds=seconds)


def _told_again(old: Reading, true: Reading) -> Reading:
    """Return an old reading under the new step's number."""
    return replace(old, step=true.step, policy_version=true.policy_version)
