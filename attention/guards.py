"""What kernels check before they compute: limits of a library, the tensors of a call.

Shapes: t query rows and s keys of a call; H query heads; G kv heads; D head dim.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from libra.attention.segments import Segments

# Rows are loaded in 16 byte vectors by every flash kernel.
_VECTOR = 8
_HALF = (torch.bfloat16, torch.float16)


def flash_refusal(
    device: torch.device, dtype: torch.dtype, head_dim: int, *, widest: int
) -> str | None:
    """Return why a flash kernel on CUDA cannot take such tensors, None if it can.

    ``widest`` is the largest head dim of the kernel.
    """
    if device.type != "cuda":
        return f"runs on cuda, not on {device.type}"
    if dtype not in _HALF:
        return f"takes bfloat16 and float16, not {_short(dtype)}"
    if head_dim % _VECTOR or head_dim > widest:
        return f"takes head_dim in multiples of {_VECTOR} up to {widest}, not {head_dim}"
    return None


def parameters_refusal(function: Callable[..., Any], passed: Iterable[str]) -> str | None:
    """Return which of the arguments that we pass a function or torch op lacks, None if none."""
    missing = sorted(set(passed) - _parameter_names(function))
    if not missing:
        return None
    name = getattr(function, "__name__", repr(function))
    return f"{name} of the installed version lacks {', '.join(missing)}"


def check_filled(q: Tensor, k: Tensor, segments: Segments) -> None:
    """Raise ``ValueError`` unless q [t, H, D] and k [s, G, D] hold the segments and some heads.

    The CPU's flash kernel divides by zero on an empty tensor, which ends the process.
    """
    for name, tensor, tokens in (("q", q, segments.query_tokens), ("k", k, segments.key_tokens)):
        if tensor.numel() == 0:
            raise ValueError(f"{name}={list(tensor.shape)}: must not be empty")
        if tensor.shape[0] != tokens.sum():
            raise ValueError(
                f"{name}={list(tensor.shape)}: must have the segments' {tokens.sum()} rows"
            )


def one_segment(q: Tensor, k: Tensor, segments: Segments) -> int:
    """Return how many keys come before the first query of the only segment; check the call."""
    check_filled(q, k, segments)
    if len(segments) != 1:
        raise ValueError(f"segments={len(segments)}: must be one a call")
    return k.shape[0] - q.shape[0]


def _parameter_names(function: Callable[..., Any]) -> set[str]:
    overload = getattr(function, "default", function)
    schema = getattr(overload, "_schema", None)
    if schema is not None:
        return {argument.name for argument in schema.arguments}
    return set(inspect.signature(function).parameters)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
