"""Tile attention on CUDA by torch's own varlen flash kernel, for where flash-attn is missing.

It is what ``torch.nn.attention.varlen`` calls; called directly, it gives back the log-sum-exp in
the kernel's own layout and takes it again in backward, which the public function does not.

Shapes: t query rows and s keys of all segments; H query heads; G kv heads; D head dim.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from libra.attention.guards import check_filled, flash_refusal, parameters_refusal
from libra.attention.offsets import device_offsets
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec

_WIDEST_HEAD = 256
_PASSED = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "scale", "is_causal", "window_size_left")
_PASSED_FORWARD = (*_PASSED, "window_size_right", "return_debug_mask", "dropout_p")
_PASSED_BACKWARD = (*_PASSED, "window_size_right", "dropout_p")


class TorchVarlenKernel:
    """Flash attention as torch ships it; it takes fewer kv heads than heads as they are."""

    name = "torch-varlen"
    packed = True

    def __init__(
        self,
        forward: Callable[..., Any] = torch.ops.aten._flash_attention_forward,
        backward: Callable[..., Any] = torch.ops.aten._flash_attention_backward,
    ) -> None:
        """Use torch's ops, or others that take the same arguments."""
        self._forward = forward
        self._backward = backward
        self._unfit = parameters_refusal(forward, _PASSED_FORWARD) or parameters_refusal(
            backward, _PASSED_BACKWARD
        )

    def refusal(
        self, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, head_dim: int
    ) -> str | None:
        """Return why it cannot do this, None if it can."""
        reason = flash_refusal(device, dtype, head_dim, widest=_WIDEST_HEAD) or self._unfit
        if reason is not None:
            return reason
        if spec.softcap is not None:
            return "has no softcap"
        if not torch.backends.cuda.is_flash_attention_available():
            return "this build of torch has no flash attention"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "needs compute capability 8.0 or newer"
        return None

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
        """Write out [t, H, D] and logsumexp [H, t] of q [t, H, D], k and v [s, G, D]."""
        check_filled(q, k, segments)
        rows, lse, *_ = self._forward(
            q, k, v, *_extents(segments, q.device), *_masking(spec), False, **_softmax(spec)
        )
        if lse.shape != logsumexp.shape:
            raise RuntimeError(
                f"logsumexp={list(lse.shape)}: this torch pads it, {list(logsumexp.shape)} wanted"
            )
        out.copy_(rows)
        logsumexp.copy_(lse)

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
        """Write dq [t, H, D], dk and dv [s, G, D] to ``grads``."""
        check_filled(q, k, segments)
        # What dropout would have drawn: never read, but the op takes no None.
        rng_state = torch.empty(2, dtype=torch.uint64, device=q.device)
        unused = torch.empty(0, device=q.device)
        found = self._backward(
            grad_out,
            q,
            k,
            v,
            out,
            logsumexp.contiguous(),
            *_extents(segments, q.device),
            *_masking(spec),
            rng_state,
            unused,
            **_softmax(spec),
        )
        for grad, value in zip(grads, found, strict=True):
            grad.copy_(value)


def _extents(segments: Segments, device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    offsets = device_offsets(segments, device)
    return offsets.queries, offsets.keys, offsets.most_queries, offsets.most_keys


def _masking(spec: AttentionSpec) -> tuple[float, bool]:
    """Return dropout and whether the mask is causal; a window is causal by its right side."""
    return 0.0, spec.window is None


def _softmax(spec: AttentionSpec) -> dict[str, float | int]:
    left = -1 if spec.window is None else spec.window - 1
    return {"scale": spec.scale, "window_size_left": left, "window_size_right": 0}
