"""What a varlen attention kernel computes, and what it insists on: by explicit softmax on a CPU.

Query ``i`` of a segment of t queries and s keys reads key ``j`` when
``i + s - t - left <= j <= i + s - t + right``; a negative side is endless.

Shapes: t query rows and s keys; H query heads; G kv heads; D head dim; n segments.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


class Recorder:
    """Computes what a varlen kernel is asked for, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> tuple[Tensor, Tensor]:
        """Return out [t, H, D] and logsumexp [H, t], both contiguous."""
        self._check(q, k, v, asked)
        outs, lses = [], []
        for rows, keys in _pieces(asked):
            out, lse = _attend(q[rows].double(), k[keys].double(), v[keys].double(), asked)
            outs.append(out)
            lses.append(lse)
        return torch.cat(outs).to(q.dtype), torch.cat(lses, dim=1).float()

    def backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        **asked: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk and dv, after seeing that out and logsumexp are those of the call."""
        self._check(q, k, v, asked)
        assert lse.is_contiguous()
        assert lse.dtype == torch.float32
        assert lse.shape == (q.shape[1], q.shape[0])
        assert grad_out.dtype == out.dtype == q.dtype
        inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            pairs = [
                _attend(inputs[0][rows], inputs[1][keys], inputs[2][keys], asked)
                for rows, keys in _pieces(asked)
            ]
            wanted = torch.cat([pair[0] for pair in pairs])
            torch.testing.assert_close(out.double(), wanted.detach(), rtol=0.02, atol=0.02)
            own = torch.cat([pair[1] for pair in pairs], dim=1).detach()
            torch.testing.assert_close(lse.double(), own, rtol=1e-4, atol=1e-4)
            grads = torch.autograd.grad(wanted, inputs, grad_out.double())
        dq, dk, dv = (grad.to(q.dtype) for grad in grads)
        return dq, dk, dv

    def _check(self, q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any]) -> None:
        self.calls.append(asked)
        for x in (q, k, v):
            assert x.dtype in HALF
            assert x.stride(-1) == 1
            assert x.dim() == 3
        assert q.shape[1] % k.shape[1] == 0
        for side, tokens in (("q", q.shape[0]), ("k", k.shape[0])):
            offsets, most = asked[f"cu_{side}"], asked[f"max_{side}"]
            assert offsets.dtype == torch.int32
            assert offsets.device == q.device
            assert offsets.is_contiguous()
            assert int(offsets[0]) == 0
            assert int(offsets[-1]) == tokens
            assert type(most) is int
            assert most == int(offsets.diff().max())
        assert isinstance(asked["scale"], float)
        assert asked["dropout"] == 0.0


def _pieces(asked: dict[str, Any]) -> list[tuple[slice, slice]]:
    rows, keys = (pairwise(asked[name].tolist()) for name in ("cu_q", "cu_k"))
    return [(slice(*row), slice(*key)) for row, key in zip(rows, keys, strict=True)]


def _attend(q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any]) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q, keys) * asked["scale"]
    if asked["softcap"]:
        scores = asked["softcap"] * torch.tanh(scores / asked["softcap"])
    left, right = asked["left"], 0 if asked["causal"] else asked["right"]
    middle = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    ahead = torch.arange(k.shape[0])[None] - middle
    read = torch.ones_like(ahead, dtype=torch.bool)
    if left >= 0:
        read &= ahead >= -left
    if right >= 0:
        read &= ahead <= right
    scores = scores.masked_fill(~read, -torch.inf)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), values), scores.logsumexp(-1)
