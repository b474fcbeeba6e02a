"""Tile attention on a CPU by torch's own flash kernel.

Torch aligns a causal mask to the top left, so rows that start in the middle of a document are
two calls, a full block of earlier keys and a diagonal block, merged by their log-sum-exps.
Backward needs no merge: with the merged output and log-sum-exp each block's call returns
exactly its own share of the gradients.

Shapes: r rows and s keys of one tile; H query heads; G kv heads; D head dim.
"""

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SdpaCpuKernel:
    """Torch's CPU flash kernel behind SDPA; it takes fewer kv heads than heads as they are."""

    name = "sdpa-cpu"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, row_begin: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return out [r, H, D] and log-sum-exp [H, r]."""
        queries = _heads_first(q)
        out, logsumexp = self._block(queries, k[row_begin:], v[row_begin:], True, scale)
        if row_begin:
            earlier = self._block(queries, k[:row_begin], v[:row_begin], False, scale)
            out, logsumexp = _merge(out, logsumexp, *earlier)
        return out[0].transpose(0, 1), logsumexp[0]

    def _block(
        self, queries: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, logsumexp = _flash(
            queries, _heads_first(k), _heads_first(v), 0.0, causal, attn_mask=None, scale=scale
        )
        return out, logsumexp

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
        """Write dq [r, H, D], dk and dv [s, G, D] to ``grads``."""
        dq, dk, dv = grads
        fixed = (_heads_first(out), logsumexp[None], 0.0)
        upstream, queries = _heads_first(grad_out), _heads_first(q)

        def block(keys: slice, causal: bool) -> Tensor:
            dq_block, dk_block, dv_block = _flash_backward(
                upstream,
                queries,
                _heads_first(k[keys]),
                _heads_first(v[keys]),
                *fixed,
                causal,
                attn_mask=None,
                scale=scale,
            )
            dk[keys], dv[keys] = dk_block[0].transpose(0, 1), dv_block[0].transpose(0, 1)
            dq_rows: Tensor = dq_block[0].transpose(0, 1)
            return dq_rows

        dq.copy_(block(slice(row_begin, None), True))
        if row_begin:
            dq += block(slice(0, row_begin), False)


def _heads_first(x: Tensor) -> Tensor:
    """View [r, H, D] as [1, H, r, D]."""
    return x.transpose(0, 1).unsqueeze(0)


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two softmax-weighted averages over disjoint keys, the first in place.

    Shapes: out [1, H, r, D], lse [1, H, r].

    With l = log(exp a + exp b) the merged average is exp(a - l) A + exp(b - l) B (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    logsumexp = torch.logaddexp(lse_a, lse_b)
    weight_a = torch.exp(lse_a - logsumexp).unsqueeze(-1)
    weight_b = torch.exp(lse_b - logsumexp).unsqueeze(-1)
    return out_a.mul_(weight_a).addcmul_(out_b, weight_b.to(out_b.dtype)), logsumexp
