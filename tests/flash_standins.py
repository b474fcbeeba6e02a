"""Stand-ins for the varlen kernels of flash-attn, argument for argument.

Names, order and meaning of the arguments follow flash-attn 2.8.3
(``flash_attn_interface._flash_attn_varlen_forward`` and ``_backward``) and flash-attn-4 4.0.0b36
(``cute.interface._flash_attn_fwd`` and ``_bwd``), without those that the kernels never pass.
"""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.varlen_recorder import Recorder


def install_flash2(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put a flash-attn 2 where it is imported from."""
    recorder = Recorder()

    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        return_softmax: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert alibi_slopes is None
        assert not return_softmax
        out, lse = recorder.forward(
            q,
            k,
            v,
            cu_q=cu_seqlens_q,
            cu_k=cu_seqlens_k,
            max_q=max_seqlen_q,
            max_k=max_seqlen_k,
            dropout=dropout_p,
            causal=causal,
            scale=softmax_scale,
            softcap=softcap,
            left=window_size_left,
            right=window_size_right,
        )
        return out, lse, torch.empty(0), torch.empty(2, dtype=torch.int64)

    def backward(
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        softmax_lse: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int,
        window_size_right: int,
        softcap: float,
        alibi_slopes: Tensor | None,
        deterministic: bool,
        rng_state: Tensor | None = None,
    ) -> Tensor:
        assert alibi_slopes is None
        assert rng_state is None
        grads = recorder.backward(
            dout,
            q,
            k,
            v,
            out,
            softmax_lse,
            cu_q=cu_seqlens_q,
            cu_k=cu_seqlens_k,
            max_q=max_seqlen_q,
            max_k=max_seqlen_k,
            dropout=dropout_p,
            causal=causal,
            scale=softmax_scale,
            softcap=softcap,
            left=window_size_left,
            right=window_size_right,
            deterministic=deterministic,
        )
        for place, grad in zip((dq, dk, dv), grads, strict=True):
            assert place.stride(-1) == 1
            place.copy_(grad)
        return torch.empty(0)

    module = ModuleType("flash_attn.flash_attn_interface")
    vars(module).update(
        _wrapped_flash_attn_varlen_forward=forward, _wrapped_flash_attn_varlen_backward=backward
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return recorder


def install_flash4(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put a flash-attn-4 where it is imported from."""
    recorder = Recorder()

    def words(
        window_size_left: int | None, window_size_right: int | None, **rest: Any
    ) -> dict[str, Any]:
        left = -1 if window_size_left is None else window_size_left
        return {"left": left, "right": window_size_right, "dropout": 0.0, **rest}

    def fwd(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        qv: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        softcap: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        return_lse: bool = False,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, None, None, None]:
        assert qv is None
        assert return_lse
        found = recorder.forward(
            q,
            k,
            v,
            cu_q=cu_seqlens_q,
            cu_k=cu_seqlens_k,
            max_q=max_seqlen_q,
            max_k=max_seqlen_k,
            causal=causal,
            scale=softmax_scale,
            softcap=softcap,
            **words(window_size_left, window_size_right),
            given=(out, lse),
        )
        return (*_place((out, lse), found), None, None, None)

    def bwd(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        dout: Tensor,
        lse: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        softcap: float = 0.0,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        deterministic: bool = False,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        found = recorder.backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            cu_q=cu_seqlens_q,
            cu_k=cu_seqlens_k,
            max_q=max_seqlen_q,
            max_k=max_seqlen_k,
            causal=causal,
            scale=softmax_scale,
            softcap=softcap,
            **words(window_size_left, window_size_right),
            deterministic=deterministic,
            given=(dq, dk, dv),
        )
        return tuple(_place((dq, dk, dv), found))

    module = ModuleType("flash_attn.cute.interface")
    vars(module).update(_flash_attn_fwd=fwd, _flash_attn_bwd=bwd)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return recorder


def _place(places: tuple[Tensor | None, ...], values: tuple[Tensor, ...]) -> Any:
    """Write values where room was given, and return what the caller gets."""
    for place, value in zip(places, values, strict=True):
        assert place is None or place.is_contiguous()
        yield value if place is None else place.copy_(value)
