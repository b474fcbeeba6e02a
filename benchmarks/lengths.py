"""Document lengths to benchmark on: named families, and files of others' measurements.

The families' parameters are those of public corpora: Wikipedia (FlexSP's list), ProLong (DistCA's),
WLB-LLM's histogram, MagiAttention's histogram, and a log-normal that reproduces the figures
published for production data.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Family = Callable[[np.random.Generator, int], Int64]

_LONGEST = 1 << 20


def family(name_or_path: str) -> Family:
    """Return a generator of lengths: a named family, or draws from a file's lengths.

    Files are text with one length a line (``#`` begins a comment), a JSON list of numbers, a numpy
    array, or a CSV histogram whose first column is a range ``[low, high]`` and whose second is a
    count; any of them may be gzipped.

    Raises:
        ValueError: neither a family nor a file, or a file with a length below 1.
    """
    if name_or_path in FAMILIES:
        return FAMILIES[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"lengths={name_or_path}: must be a file or one of {', '.join(FAMILIES)}")
    try:
        return _read(path)
    except (ValueError, TypeError, IndexError, OSError) as error:
        raise ValueError(f"lengths={path}: must hold lengths of at least 1: {error}") from error


def _read(path: Path) -> Family:
    """Return draws from a file by its suffix; raise what its reader does where it cannot."""
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if suffixes[-1:] == [".npy"]:
        return _drawn_from(np.load(io.BytesIO(raw)))
    text = raw.decode()
    if suffixes[-1:] == [".csv"]:
        return _histogram(text)
    if suffixes[-1:] == [".json"]:
        return _drawn_from(np.array(json.loads(text)))
    return _drawn_from(np.loadtxt(text.splitlines(), dtype=np.int64, ndmin=1))


def _drawn_from(lengths: NDArray[np.generic]) -> Family:
    own = np.asarray(lengths).astype(np.int64).reshape(-1)
    if not len(own):
        raise ValueError("there are none")
    if own.min() < 1:
        raise ValueError(f"{own.min()} is among them")
    return lambda rng, count: rng.choice(own, count)


def _histogram(text: str) -> Family:
    rows = list(csv.reader(text.splitlines()))[1:]
    bounds = np.array([row[0].strip("[]").split(",") for row in rows]).astype(np.float64)
    weights = np.array([row[1] for row in rows]).astype(np.float64)
    if not weights.any() or weights.min() < 0:
        raise ValueError(f"counts {weights.tolist()} are not of lengths")
    low, high = np.maximum(bounds[:, 0], 1.0), bounds[:, 1] + 1.0

    def draw(rng: np.random.Generator, count: int) -> Int64:
        bin_ = rng.choice(len(weights), count, p=weights / weights.sum())
        # Log-uniform within a bin: lengths thin out as they grow.
        return np.exp(rng.uniform(np.log(low[bin_]), np.log(high[bin_]))).astype(np.int64)

    return draw


def _libra(rng: np.random.Generator, count: int) -> Int64:
    return _clipped(rng.lognormal(np.log(644), 1.9, count))


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


FAMILIES: dict[str, Family] = {
    "libra": _libra,
    "wikipedia": _wikipedia,
    "prolong": _prolong,
    "wlb": _wlb,
    "bimodal": _bimodal,
    "long-tailed": _long_tailed,
}


def packed_cell(draw: Family, rng: np.random.Generator, tokens: int, sequences: int) -> list[Int64]:
    """Return document lengths of packed sequences, filled in order and cut at their ends."""
    lengths = draw(rng, 64)
    while int(lengths.sum()) < tokens * sequences:
        lengths = np.concatenate((lengths, draw(rng, len(lengths))))
    ends = np.cumsum(lengths)
    bounds = np.arange(1, sequences + 1) * tokens
    cuts = np.union1d(ends[ends < bounds[-1]], bounds)
    starts = np.concatenate(([0], cuts[:-1]))
    first = np.searchsorted(cuts, bounds, side="right")
    return [np.ascontiguousarray(part) for part in np.split(cuts - starts, first[:-1])]
