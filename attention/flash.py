"""Tile attention on CUDA by flash-attn 2 and flash-attn 4, where they are installed.

Both are called below their autograd functions, which keep the log-sum-exp to themselves. Those
functions are not public, so each kernel asks once whether they still take what it passes.

Shapes: t query rows and s keys of all segments; H query heads; G kv heads; D head dim.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from libra.attention.guards import check_filled, flash_refusal, parameters_refusal
from libra.attention.offsets import device_offsets
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec

_EXTENTS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_SOFTMAX = ("softmax_scale", "causal", "window_size_left", "window_size_right", "softcap")
_GRADS = ("dq", "dk", "dv")


class _FlashKernel:
    """What both have in common: two functions of a module that is imported on first use.

    Attributes:
        module: where the functions are.
        functions: names of the forward and the backward function.
        passed: the arguments that each of the two is given by name.
        widest: the largest head dim.
        capabilities: majors of the compute capability that the kernel is written for.
    """

    name: str
    packed = True
    module: str
    functions: tuple[str, str]
    passed: tuple[tuple[str, ...], tuple[str, ...]]
    widest: int
    capabilities: range

    def __init__(self) -> None:
        """Import the module; where that fails, or it is not what we know, refuse from then on."""
        self._unfit: str | None = None
        try:
            module = import_module(self.module)
            self._forward, self._backward = (getattr(module, name) for name in self.functions)
        # A library built for another torch or CUDA fails in any way it likes.
        except Exception as error:
            self._unfit = f"cannot be imported: {error}"
            return
        for function, passed in zip((self._forward, self._backward), self.passed, strict=True):
            self._unfit = self._unfit or parameters_refusal(function, passed)

    _forward: Callable[..., Any]
    _backward: Callable[..., Any]

    def refusal(
        self, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, head_dim: int
    ) -> str | None:
        """Return why it cannot do this, None if it can."""
        reason = flash_refusal(device, dtype, head_dim, widest=self.widest) or self._unfit
        if reason is not None:
            return reason
        major = torch.cuda.get_device_capability(device)[0]
        if major not in self.capabilities:
            known = f"{self.capabilities[0]}.x to {self.capabilities[-1]}.x"
            return f"is written for compute capability {known}, not {major}.x"
        return None


class FlashAttention2Kernel(_FlashKernel):
    """flash-attn 2.7.1 or newer, on Ampere and newer."""

    name = "flash-attn-2"
    module = "flash_attn.flash_attn_interface"
    functions = ("_wrapped_flash_attn_varlen_forward", "_wrapped_flash_attn_varlen_backward")
    passed = (
        (*_EXTENTS, *_SOFTMAX, "dropout_p", "return_softmax"),
        (*_EXTENTS, *_SOFTMAX, *_GRADS, "dropout_p", "alibi_slopes", "deterministic"),
    )
    widest = 256
    capabilities = range(8, 13)

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
            q, k, v, **_extents(segments, q.device), **_softmax2(spec), return_softmax=False
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
        """Write dq [t, H, D], dk and dv [s, G, D] to ``grads``, in place."""
        check_filled(q, k, segments)
        self._backward(
            grad_out,
            q,
            k,
            v,
            out,
            logsumexp.contiguous(),
            *grads,
            **_extents(segments, q.device),
            **_softmax2(spec),
            alibi_slopes=None,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )


class FlashAttention4Kernel(_FlashKernel):
    """flash-attn-4, compiled for the shapes at hand on first use, on Hopper and Blackwell."""

    name = "flash-attn-4"
    module = "flash_attn.cute.interface"
    functions = ("_flash_attn_fwd", "_flash_attn_bwd")
    passed = (
        (*_EXTENTS, *_SOFTMAX, "out", "lse", "return_lse"),
        (*_EXTENTS, *_SOFTMAX, *_GRADS, "deterministic"),
    )
    # Some of the wider heads work, depending on the GPU and the rest; flash-attn 2 takes them all.
    widest = 128
    # Its backward for consumer Blackwell, 12.x, is not deterministic and knows fewer masks.
    capabilities = range(9, 12)

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
            q,
            k,
            v,
            **_extents(segments, q.device),
            **_softmax4(spec),
            out=_if_contiguous(out),
            lse=_if_contiguous(logsumexp),
            return_lse=True,
        )
        _keep(out, rows)
        _keep(logsumexp, lse)

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
        places = {name: _if_contiguous(grad) for name, grad in zip(_GRADS, grads, strict=True)}
        found = self._backward(
            q,
            k,
            v,
            out,
            grad_out,
            logsumexp.contiguous(),
            **_extents(segments, q.device),
            **_softmax4(spec),
            **places,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        for grad, value in zip(grads, found, strict=True):
            _keep(grad, value)


def _extents(segments: Segments, device: torch.device) -> dict[str, Any]:
    offsets = device_offsets(segments, device)
    values = (offsets.queries, offsets.keys, offsets.most_queries, offsets.most_keys)
    return dict(zip(_EXTENTS, values, strict=True))


def _softmax2(spec: AttentionSpec) -> dict[str, Any]:
    """Return flash-attn 2's words for a spec: -1 is an endless window, 0 is no softcap."""
    return {
        "softmax_scale": spec.scale,
        "causal": True,
        "window_size_left": -1 if spec.window is None else spec.window - 1,
        "window_size_right": 0,
        "softcap": spec.softcap or 0.0,
        "dropout_p": 0.0,
    }


def _softmax4(spec: AttentionSpec) -> dict[str, Any]:
    """Return flash-attn 4's words for a spec: None is an endless window, 0 is no softcap."""
    return {
        "softmax_scale": spec.scale,
        "causal": True,
        "window_size_left": None if spec.window is None else spec.window - 1,
        "window_size_right": 0,
        "softcap": spec.softcap or 0.0,
    }


def _if_contiguous(x: Tensor) -> Tensor | None:
    """Return where a result may be written at once; None has the kernel make room for it."""
    return x if x.is_contiguous() else None


def _keep(place: Tensor, value: Tensor) -> None:
    if value is not place:
        place.copy_(value)
