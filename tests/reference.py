"""Dense single-process attention: the independent reference that the operator is judged by.

Shapes: T tokens of a packed sequence; H query heads; G kv heads; D head dim; L document length.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def dense_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return [T, H, D] by explicit softmax within each document; zero on padding."""
    group = q.shape[1] // k.shape[1]
    outs, start = [], 0
    for length in lengths:
        rows = slice(start, start + length)
        queries = q[rows].transpose(0, 1)
        keys = k[rows].repeat_interleave(group, dim=1).transpose(0, 1)
        values = v[rows].repeat_interleave(group, dim=1).transpose(0, 1)
        scores = queries @ keys.transpose(1, 2) / q.shape[2] ** 0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        outs.append((weights @ values).transpose(0, 1))
        start += length
    # Not new zeros, so that a sequence of nothing but padding has gradients too: zero.
    outs.append(q[start:] * 0)
    return torch.cat(outs)


def long_tailed_lengths(
    rng: np.random.Generator, tokens: int, median: float, sigma: float = 1.5
) -> list[int]:
    """Return document lengths that nearly fill ``tokens``, log-normal, the last one cut."""
    lengths: list[int] = []
    left = tokens - int(rng.integers(0, max(1, tokens // 16)))
    while left > 0:
        length = min(left, int(rng.lognormal(np.log(median), sigma)) + 1)
        lengths.append(length)
        left -= length
    return lengths


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Return the largest absolute difference over the reference's largest absolute value."""
    largest = float(reference.abs().max())
    return float((value.double() - reference).abs().max()) / (largest or 1.0)
