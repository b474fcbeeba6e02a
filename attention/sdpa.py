"""Tile attention on a CPU by torch's own flash kernel.

Torch aligns a causal mask to the top left, so rows that start in the middle of a document are
two calls, a full block of earlier keys and a diagonal block, merged by their log-sum-exps.
Backward needs no merge: with the merged output and log-sum-exp each block's call returns
exactly its own share of the gradients.

Shapes: t query rows and s keys of a segment; H query heads; G kv heads; D head dim.
"""

import torch
from torch import Tensor

from libra.attention.guards import one_segment
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class SdpaCpuKernel:
    """Torch's CPU flash kernel behind SDPA; it takes fewer kv heads than heads as they are."""

    name = "sdpa-cpu"
    packed = False

    def refusal(
        self, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, head_dim: int
    ) -> str | None:
        """Return why it cannot do this, None if it can."""
        if device.type != "cpu":
            return f"runs on cpu, not on {device.type}"
        if dtype not in _DTYPES:
            return f"takes floating point numbers, not {str(dtype).removeprefix('torch.')}"
        if head_dim < 1:
            return f"takes head_dim from 1, not {head_dim}"
        if spec.softcap is not None:
            return "has no softcap"
        if spec.window is not None:
            return "has no sliding window"
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
        row_begin = one_segment(q, k, segments)
        queries = _heads_first(q)

        def block(keys: slice, causal: bool) -> tuple[Tensor, Tensor]:
            rows, lse = _flash(
                queries,
                _heads_first(k[keys]),
                _heads_first(v[keys]),
                0.0,
                causal,
                attn_mask=None,
                scale=spec.scale,
            )
            return rows[0].transpose(0, 1), lse[0]

        diagonal = block(slice(row_begin, None), True)
        if row_begin:
            _merge(block(slice(0, row_begin), False), diagonal, out, logsumexp)
        else:
            out.copy_(diagonal[0])
            logsumexp.copy_(diagonal[1])

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
        row_begin = one_segment(q, k, segments)
        dq, dk, dv = grads
        upstream, queries = _heads_first(grad_out), _heads_first(q)
        result = (_heads_first(out), logsumexp[None], 0.0)

        def block(keys: slice, causal: bool) -> Tensor:
            blocks = _flash_backward(
                upstream,
                queries,
                _heads_first(k[keys]),
                _heads_first(v[keys]),
                *result,
                causal,
                attn_mask=None,
                scale=spec.scale,
            )
            rows: list[Tensor] = [grad[0].transpose(0, 1) for grad in blocks]
            dk[keys], dv[keys] = rows[1:]
            return rows[0]

        diagonal = block(slice(row_begin, None), True)
        if row_begin:
            torch.add(diagonal, block(slice(0, row_begin), False), out=dq)
        else:
            dq.copy_(diagonal)


def _heads_first(x: Tensor) -> Tensor:
    """View [t, H, D] as [1, H, t, D]."""
    return x.transpose(0, 1).unsqueeze(0)


def _merge(
    earlier: tuple[Tensor, Tensor], diagonal: tuple[Tensor, Tensor], out: Tensor, logsumexp: Tensor
) -> None:
    """Write the average over both blocks' keys to ``out``, and its log-sum-exp.

    Shapes: each block and the result are [t, H, D] and [H, t].

    With l = log(exp a + exp b) the average is exp(a - l) A + exp(b - l) B (Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018); the weights add up to one, so
    one interpolation does it. Half precision is rounded only once more, when it is written.
    """
    (earlier_out, earlier_lse), (diagonal_out, diagonal_lse) = earlier, diagonal
    weight = torch.sigmoid(diagonal_lse - earlier_lse).transpose(0, 1).unsqueeze(-1)
    torch.logaddexp(earlier_lse, diagonal_lse, out=logsumexp)
    if out.dtype == weight.dtype:
        torch.lerp(earlier_out, diagonal_out, weight, out=out)
    else:
        exact = earlier_out.to(weight.dtype)
        out.copy_(exact.lerp_(diagonal_out.to(weight.dtype), weight))
