"""Measure exchanged waves: moment sums of seconds by messages and bytes, of each transport.

Only a wave that was waited for is measured, since of one that kernels hid it is not known when it
ended. Its seconds run from when this rank began it, so a peer that comes late lengthens them:
each batch keeps the half that was quicker than the rest for its messages and bytes. What is
reported is then about the lower quartile of the waves waited for, an estimate of what a wave takes
whose peers come in time.

Shapes: n waves of messages, bytes and seconds, [n, 3].
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from libra.attention.observer import Traffic
from libra.balancer.moments import Moments
from libra.balancer.nonnegative import solve_nonnegative
from libra.balancer.wire import MAX_SECONDS, MAX_WAVE_TRANSPORTS, WAVE_FEATURES, WaveMoments

Float64 = NDArray[np.float64]

# A wait that is shorter, or a smaller share of the wave, is the cost of asking.
MIN_WAIT_S = 50e-6
MIN_WAIT_SHARE = 0.05
# Of fewer the quicker half says little, of more the training thread would hold up too many.
MIN_WAVES = 16
FOLD_WAVES = 64


class WaveMeter:
    """Gather exposed waves; one thread notes and folds, another takes."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[float, float, float]]] = {}
        # Handed over without a lock, as kernel samples are.
        self._moments: deque[dict[str, Moments]] = deque(maxlen=1)

    def note(self, traffic: Traffic, *, wait_s: float, seconds: float) -> None:
        """Note a wave that took ``seconds`` in all and was waited for the last ``wait_s``."""
        exposed = wait_s >= max(MIN_WAIT_S, MIN_WAIT_SHARE * seconds)
        if not traffic.messages or not exposed or seconds > MAX_SECONDS:
            return
        rows = self._rows.get(traffic.backend)
        if rows is None:
            if len(self._rows) == MAX_WAVE_TRANSPORTS:
                return
            rows = self._rows[traffic.backend] = []
        rows.append((traffic.messages, traffic.busier_bytes, seconds))
        if len(rows) >= FOLD_WAVES:
            self._fold(traffic.backend, rows)

    def end_step(self) -> None:
        """Move what is enough to judge into the sums."""
        for transport, rows in self._rows.items():
            if len(rows) >= MIN_WAVES:
                self._fold(transport, rows)

    def take(self) -> list[WaveMoments]:
        """Return and forget what is folded; nothing while the other thread folds."""
        try:
            moments = self._moments.pop()
        except IndexError:
            return []
        return [
            WaveMoments(transport=transport, sums=own.sums.tolist())
            for transport, own in moments.items()
        ]

    def _fold(self, transport: str, rows: list[tuple[float, float, float]]) -> None:
        waves = quicker_half(np.array(rows, dtype=np.float64))
        rows.clear()
        try:
            moments = self._moments.pop()
        except IndexError:
            moments = {}
        own = moments.setdefault(transport, Moments(num_features=len(WAVE_FEATURES)))
        own.add(waves[:, :-1], waves[:, -1])
        self._moments.append(moments)


def quicker_half(waves: Float64) -> Float64:
    """Return those of waves [n, 3] that took less than the others for their messages and bytes."""
    kept = waves
    for _ in range(3):
        moments = Moments(num_features=waves.shape[1] - 1)
        moments.add(kept[:, :-1], kept[:, -1])
        expected = waves[:, :-1] @ solve_nonnegative(moments.gram, moments.projection)
        ratios = waves[:, -1] / expected
        kept = waves[ratios <= np.median(ratios)]
    return kept
