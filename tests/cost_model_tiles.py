"""Made-up tiles and what they cost, for tests of the cost model. Shapes: F = 6 features."""

import numpy as np
from numpy.typing import NDArray

from libra.attention.cost import tile_features

Float64 = NDArray[np.float64]

# Seconds per feature, each of which is felt in some tiles.
TRUTH = np.array([2e-5, 3e-7, 1e-7, 4e-9, 1e-6, 1e-7])


def draw_tiles(seed: int, n: int = 200, *, cut: bool = True, most: int = 65536) -> Float64:
    """Return features [n, F] of tiles of 16 to ``most`` tokens, tails of documents if ``cut``."""
    rng = np.random.default_rng(seed)
    ends = np.exp(rng.uniform(np.log(16), np.log(most), n)).astype(np.int64)
    begins = (ends * rng.uniform(0, 0.9, n)).astype(np.int64) if cut else np.zeros(n, np.int64)
    return tile_features(begins, ends).astype(np.float64)


def readings(features: Float64, *, noise: float, seed: int, truth: Float64 = TRUTH) -> Float64:
    """Return seconds [n] that scatter around the truth by ``noise`` of it."""
    scatter = np.random.default_rng((seed, 1)).standard_normal(len(features))
    return np.asarray(features @ truth * np.maximum(1 + noise * scatter, 0.05))
