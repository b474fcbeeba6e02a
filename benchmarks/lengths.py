"""Document lengths to benchmark on: named families, and files of others' measurements.

The families' parameters are those of public corpora: Wikipedia (FlexSP's list), ProLong (DistCA's),
WLB-LLM's histogram, MagiAttention's histogram, and a log-normal that reproduces the figures
published for production data.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.histogram import Histogram
from benchmarks.length_files import read_lengths

Int64 = NDArray[np.int64]
Family = Callable[[np.random.Generator, int], Int64]

_LONGEST = 1 << 20


def family(name_or_path: str) -> Family:
    """Return a generator of lengths: a named family, or draws from a file's lengths.

    ``read_lengths`` says which files there may be.

    Raises:
        ValueError: neither a family nor a file, or a file with a length below 1.
    """
    if name_or_path in FAMILIES:
        return FAMILIES[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"lengths={name_or_path}: must be a file or one of {', '.join(FAMILIES)}")
    own = read_lengths(path)
    return own if isinstance(own, Histogram) else lambda rng, count: rng.choice(own, count)


def _libra(rng: np.random.Generator, count: int) -> Int64:
    lengths = rng.lognormal(np.log(644), 1.9, count)
    # Drawn again, not clipped: a clip would pile up documents of exactly the longest length.
    while (over := lengths > _LONGEST).any():
        lengths[over] = rng.lognormal(np.log(644), 1.9, int(over.sum()))
    return _clipped(lengths)


def _wikipedia(rng: np.random.Generator, count: int) -> Int64:
    body = np.minimum(rng.lognormal(5.95, 1.258, count), 10_921)
    tail = 10_921 * (1 + rng.pareto(1.9, count))
    return _clipped(np.where(rng.random(count) < 0.01, tail, body))


def _prolong(rng: np.random.Generator, count: int) -> Int64:
    body = np.minimum(rng.lognormal(7.68, 0.74, count), 16_384)
    tail = 16_384 * (1 + rng.pareto(2.2, count))
    return _clipped(np.where(rng.random(count) < 0.01, tail, body))


def _wlb(rng: np.random.Generator, count: int) -> Int64:
    body = rng.uniform(1, 6_250, count)
    tail = rng.uniform(6_250, 125_000, count)
    return _clipped(np.where(rng.random(count) < 0.03, tail, body))


def _bimodal(rng: np.random.Generator, count: int) -> Int64:
    # A log-normal of mean m and sigma s has median m exp(-s^2 / 2).
    body = rng.lognormal(np.log(1024) - 0.5, 1.0, count)
    tail = rng.lognormal(np.log(37 * 1024) - 0.125, 0.5, count)
    return _clipped(np.where(rng.random(count) < 0.001, tail, body))


def _long_tailed(rng: np.random.Generator, count: int) -> Int64:
    return _clipped(rng.lognormal(np.log(800), 1.5, count))


def _clipped(lengths: NDArray[np.float64]) -> Int64:
    return np.clip(lengths.astype(np.int64), 1, _LONGEST)


# MagiAttention's histogram: the last length of each bin, and per cent of all documents.
_MAGI_HIGH = (10, 50, 100, 200, 500, *(1 << bits for bits in range(10, 18)), 196_608)
_MAGI_SHARE = (
    *(0.22, 2.91, 5.2, 10.23, 28.19, 24.64, 15.65, 7.34, 3.05, 1.29, 0.85, 0.14, 0.17, 0.14),
)

FAMILIES: dict[str, Family] = {
    "libra": _libra,
    "wikipedia": _wikipedia,
    "prolong": _prolong,
    "wlb": _wlb,
    "bimodal": _bimodal,
    "long-tailed": _long_tailed,
    "magi": Histogram(
        low=np.array([0, *_MAGI_HIGH[:-1]], dtype=np.float64) + 1,
        high=np.array(_MAGI_HIGH, dtype=np.float64),
        weights=np.array(_MAGI_SHARE),
    ),
    # Other names of the same.
    "libra-like": _libra,
    "sft": _bimodal,
}


def packed_documents(
    draw: Family, rng: np.random.Generator, tokens: int, sequences: int
) -> tuple[Int64, Int64]:
    """Pack drawn documents into sequences, filled in order and cut at their ends.

    Returns:
        [S] lengths of documents and of their pieces, and [N + 1] where each sequence begins.
    """
    lengths = draw(rng, 64)
    while int(lengths.sum()) < tokens * sequences:
        lengths = np.concatenate((lengths, draw(rng, len(lengths))))
    ends = np.cumsum(lengths)
    bounds = np.arange(1, sequences + 1) * tokens
    cuts = np.union1d(ends[ends < bounds[-1]], bounds)
    starts = np.concatenate(([0], cuts[:-1]))
    first = np.searchsorted(cuts, bounds, side="right")
    return cuts - starts, np.concatenate(([0], first))


def packed_cell(draw: Family, rng: np.random.Generator, tokens: int, sequences: int) -> list[Int64]:
    """Return document lengths of each of the packed sequences of ``packed_documents``."""
    lengths, begins = packed_documents(draw, rng, tokens, sequences)
    return [np.ascontiguousarray(part) for part in np.split(lengths, begins[1:-1])]
