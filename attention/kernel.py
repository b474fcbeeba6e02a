"""Where a kernel goes in: the contract of a tile kernel, and the choice of one.

Shapes: t, s tokens; H query heads; G kv heads; D head dim; r rows of one tile.
"""

from typing import Protocol

import torch
from torch import Tensor

from libra.attention.sdpa import SdpaCpuKernel


class TileKernel(Protocol):
    """Attention of one tile: rows ``row_begin:row_end`` of a document to its keys ``0:row_end``.

    A kernel keeps no state and never sees an empty tile.
    """

    name: str

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, row_begin: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return out [r, H, D] and log-sum-exp [H, r] of q [r, H, D], k and v [row_end, G, D]."""
        ...

    def backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        row_begin: int,
        scale: float,
        grads: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Write dq, dk and dv, shaped as q, k and v, to ``grads``."""
        ...


def choose_kernel(device: torch.device) -> TileKernel:
    """Return the kernel for a device; raise ``ValueError`` where there is none yet."""
    if device.type == "cpu":
        return SdpaCpuKernel()
    raise ValueError(f"device={device}: the only kernel so far is {SdpaCpuKernel.name}, for cpu")
