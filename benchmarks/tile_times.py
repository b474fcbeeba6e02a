"""Seconds of real tiles by the product's CPU kernel, on one thread, interleaved.

Every pass measures all tiles once in an order of its own, so that a machine which changes its
speed meanwhile changes it for all of them alike. The first pass only warms up.

Shapes: n tiles; N passes; t query rows and s keys of a tile; D head dim; one head.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from libra.attention.cost import tile_features
from libra.attention.sdpa import SdpaCpuKernel
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Clock = Literal["cpu", "wall"]
DIRECTIONS = ("forward", "backward")

_CLOCKS: dict[Clock, Callable[[], float]] = {"cpu": time.thread_time, "wall": time.perf_counter}
_SHORTEST = 64
_SHORTEST_CUT = 256
# Planned cuts fall on blocks of rows; the kernel itself has none finer than this.
_CUT_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TileSet:
    """Tiles to measure: the last ``rows`` of documents of ``keys`` tokens, [n] each."""

    rows: Int64
    keys: Int64

    @property
    def features(self) -> Float64:
        """[n, F]."""
        return np.asarray(tile_features(self.keys - self.rows, self.keys), dtype=np.float64)

    @property
    def cut(self) -> NDArray[np.bool_]:
        """[n] whether rows of the document are missing."""
        return np.asarray(self.rows < self.keys)

    def __len__(self) -> int:
        return len(self.rows)


def draw_tiles(*, whole: int, cut: int, longest: int, seed: int) -> TileSet:
    """Return whole documents and tails of documents; lengths are uniform in their logarithm.

    Raises:
        ValueError: ``longest`` leaves no room.
    """
    if longest <= _SHORTEST_CUT:
        raise ValueError(f"longest={longest}: must be more than {_SHORTEST_CUT} tokens")
    rng = np.random.default_rng(seed)
    lengths, keys = (
        np.exp(rng.uniform(np.log(low), np.log(longest), count)).astype(np.int64)
        for low, count in ((_SHORTEST, whole), (_SHORTEST_CUT, cut))
    )
    share = rng.uniform(0.05, 0.95, cut)
    rows = np.maximum((share * keys).astype(np.int64) // _CUT_ROWS, 1) * _CUT_ROWS
    return TileSet(rows=np.concatenate((lengths, rows)), keys=np.concatenate((lengths, keys)))


def measure_tiles(
    tiles: TileSet, *, head_dim: int, passes: int, clock: Clock, seed: int
) -> Float64:
    """Return [N, n, 2] seconds of each pass, tile and direction of ``DIRECTIONS``."""
    rng, now = np.random.default_rng(seed), _CLOCKS[clock]
    threads = torch.get_num_threads()
    # The CPU clock is one thread's, and ranks that share a machine have one each.
    torch.set_num_threads(1)
    seconds = np.zeros((passes + 1, len(tiles), len(DIRECTIONS)))
    try:
        for own in seconds:
            for index in rng.permutation(len(tiles)):
                own[index] = _measure(int(tiles.rows[index]), int(tiles.keys[index]), head_dim, now)
    finally:
        torch.set_num_threads(threads)
    return seconds[1:]


def _measure(rows: int, keys: int, head_dim: int, now: Callable[[], float]) -> tuple[float, float]:
    segments = Segments(query_tokens=np.array([rows]), key_tokens=np.array([keys]))
    spec, kernel = AttentionSpec(scale=1 / math.sqrt(head_dim)), SdpaCpuKernel()
    q, k, v, grad = (torch.randn(tokens, 1, head_dim) for tokens in (rows, keys, keys, rows))
    out, logsumexp = torch.empty_like(q), torch.empty(1, rows)
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    began = now()
    kernel.forward(q, k, v, segments, spec, out, logsumexp)
    forward = now() - began
    began = now()
    kernel.backward(grad, q, k, v, out, logsumexp, segments, spec, grads)
    return forward, now() - began
