"""A stand-in for torch's varlen ops, argument for argument.

As torch 2.13 has ``aten::_flash_attention_forward`` and ``aten::_flash_attention_backward``.
"""

import torch
from torch import Tensor

from tests.varlen_recorder import Recorder


class TorchOps(Recorder):
    """Torch's two ops, argument for argument."""

    def aten_forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cum_seq_q: Tensor,
        cum_seq_k: Tensor,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        *,
        scale: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        assert not return_debug_mask
        # The public function asks for a causal mask or for a window, never for both.
        assert is_causal == (window_size_left == -1)
        out, lse = self.forward(
            query,
            key,
            value,
            cu_q=cum_seq_q,
            cu_k=cum_seq_k,
            max_q=max_q,
            max_k=max_k,
            dropout=dropout_p,
            causal=is_causal,
            scale=scale,
            softcap=0.0,
            left=window_size_left,
            right=window_size_right,
        )
        nothing = torch.empty(0)
        return out, lse, nothing, nothing, nothing

    def aten_backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        cum_seq_q: Tensor,
        cum_seq_k: Tensor,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        rng_state: Tensor,
        unused: Tensor,
        *,
        scale: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert rng_state.dtype == torch.uint64
        assert rng_state.shape == (2,)
        assert unused.numel() == 0
        return self.backward(
            grad_out,
            query,
            key,
            value,
            out,
            logsumexp,
            cu_q=cum_seq_q,
            cu_k=cum_seq_k,
            max_q=max_q,
            max_k=max_k,
            dropout=dropout_p,
            causal=is_causal,
            scale=scale,
            softcap=0.0,
            left=window_size_left,
            right=window_size_right,
        )
