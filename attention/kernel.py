"""Where a kernel goes in: the contract of a tile kernel, and the choice of one.

Shapes: t query rows and s keys of a call's segments; H query heads; G kv heads; D head dim.
"""

import logging
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from libra.attention.dense import MathKernel
from libra.attention.flash import FlashAttention2Kernel, FlashAttention4Kernel
from libra.attention.sdpa import SdpaCpuKernel
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec
from libra.attention.varlen import TorchVarlenKernel

__all__ = ["AttentionSpec", "TileKernel", "choose_kernel"]

_log = logging.getLogger(__name__)


class TileKernel(Protocol):
    """Attention of tiles: the query rows of each segment to the segment's keys.

    Tensors may be views of strided rows and heads, contiguous along D. A kernel keeps no state
    of a call and is never given an empty segment.

    Attributes:
        name: what it is called where it is logged and measured.
        packed: whether one call takes many segments; else a call takes one.
    """

    name: str
    packed: bool

    def refusal(
        self, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, head_dim: int
    ) -> str | None:
        """Return why it cannot do this, to follow its name in a message; None if it can."""
        ...

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Segments,
        spec: AttentionSpec,
        out: Tensor,
        logsumexp: Tensor,
    ) -> None:
        """Write out [t, H, D] and logsumexp [H, t] of q [t, H, D], k and v [s, G, D].

        The logarithm is natural; logsumexp is float64 for float64, else float32.
        """
        ...

    def backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        segments: Segments,
        spec: AttentionSpec,
        grads: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Write (not add) dq, dk and dv, shaped as q, k and v, to ``grads``.

        Where ``out`` and ``logsumexp`` come from more keys than these, the gradients are exactly
        the share of these keys.
        """
        ...


def choose_kernel(
    device: torch.device, dtype: torch.dtype, head_dim: int, spec: AttentionSpec
) -> TileKernel:
    """Return the fastest kernel that can do this, and log once which one and why.

    Raises:
        ValueError: none can; the message has the reason of each.
    """
    reasons: list[str] = []
    for kernel in _by_preference(device.type):
        reason = kernel.refusal(spec, device=device, dtype=dtype, head_dim=head_dim)
        if reason is None:
            _announce(kernel.name, _task(device, dtype, head_dim), "; ".join(reasons))
            return kernel
        reasons.append(f"{kernel.name} {reason}")
    raise ValueError(
        f"dtype={dtype}: no attention kernel does {_task(device, dtype, head_dim)}: "
        + "; ".join(reasons)
    )


@cache
def _by_preference(device_type: str) -> tuple[TileKernel, ...]:
    if device_type == "cpu":
        return (SdpaCpuKernel(), MathKernel())
    if device_type == "cuda":
        flash = (FlashAttention4Kernel(), FlashAttention2Kernel(), TorchVarlenKernel())
        return (*flash, MathKernel())
    return (MathKernel(),)


def _task(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    return f"{str(dtype).removeprefix('torch.')} with head_dim {head_dim} on {device.type}"


@cache
def _announce(name: str, task: str, reasons: str) -> None:
    slow = name == MathKernel.name
    because = f" ({reasons})" if reasons else ""
    _log.log(
        logging.WARNING if slow else logging.INFO,
        "attention kernel for %s: %s%s%s",
        task,
        name,
        ", which is slow" if slow else "",
        because,
    )
