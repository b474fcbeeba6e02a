"""One kernel call beside an explicit float64 softmax of the same numbers.

Shapes: t query rows and s keys of all segments; H query heads; G kv heads; D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from libra.attention.kernel import AttentionSpec, TileKernel
from libra.attention.segments import Segments
from tests.reference import relative_error

NAMES = ("out", "logsumexp", "dq", "dk", "dv")

# The reference gets the very numbers the kernel gets. Sums of a few hundred products of unit
# normals round to a few units in the last place; in half precision weights are rounded before
# they are summed, which stays below five units. A mask that is off by one is off by a tenth.
TOLERANCE = {
    torch.float64: 1e-14,
    torch.float32: 4e-6,
    torch.float16: 5 * 2**-10,
    torch.bfloat16: 5 * 2**-7,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tensors of a call, and the (query rows, keys) of its segments."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor
    sizes: Sequence[tuple[int, int]]

    @property
    def segments(self) -> Segments:
        """The segments as a kernel wants them."""
        queries, keys = np.array(self.sizes, dtype=np.int64).reshape(-1, 2).T
        return Segments(query_tokens=queries, key_tokens=keys)


def make_case(
    sizes: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (8, 2),
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    views: bool = False,
) -> Case:
    """Draw unit normals; as ``views``, slices of rows and heads of wider tensors."""
    generator = torch.Generator().manual_seed(7)
    rows = [sum(size[side] for size in sizes) for side in (0, 1)]

    def draw(tokens: int, count: int) -> Tensor:
        wide = (tokens + 5, count + 3, head_dim) if views else (tokens, count, head_dim)
        x = torch.randn(wide, generator=generator, dtype=torch.float64).to(device, dtype)
        return x[2 : 2 + tokens, 1 : 1 + count] if views else x

    q, grad_out = draw(rows[0], heads[0]), draw(rows[0], heads[0])
    k, v = draw(rows[1], heads[1]), draw(rows[1], heads[1])
    return Case(q=q, k=k, v=v, grad_out=grad_out, sizes=sizes)


def call(
    kernel: TileKernel, case: Case, spec: AttentionSpec, *, views: bool = False
) -> list[Tensor]:
    """Return out, logsumexp, dq, dk and dv; written to ``views`` of wider tensors on demand."""

    def room(like: Tensor) -> Tensor:
        if not views:
            return like.new_full(like.shape, torch.nan)
        tokens, count, head_dim = like.shape
        return like.new_full((tokens + 4, count + 2, head_dim), torch.nan)[1 : 1 + tokens, 2:]

    q, k, v = case.q, case.k, case.v
    tokens, count = q.shape[:2]
    precision = torch.promote_types(q.dtype, torch.float32)
    wide = q.new_full((count + 2, tokens + 4), torch.nan, dtype=precision)
    logsumexp = wide[2:, 1 : 1 + tokens] if views else wide[2:, 4:].contiguous()
    out, grads = room(q), (room(q), room(k), room(v))
    segments = case.segments
    kernel.forward(q, k, v, segments, spec, out, logsumexp)
    kernel.backward(case.grad_out, q, k, v, out, logsumexp, segments, spec, grads)
    return [out, logsumexp, *grads]


def expect(case: Case, spec: AttentionSpec) -> list[Tensor]:
    """Return the same by explicit softmax in float64 and autograd, segment by segment."""
    q, k, v = (x.detach().double().cpu().requires_grad_() for x in (case.q, case.k, case.v))
    outs, lses, row, key = [], [], 0, 0
    for queries, keys in case.sizes:
        read = slice(key, key + keys)
        out, lse = dense_segment(q[row : row + queries], k[read], v[read], spec)
        outs.append(out)
        lses.append(lse)
        row, key = row + queries, key + keys
    out = torch.cat(outs)
    grads = torch.autograd.grad(out, (q, k, v), case.grad_out.double().cpu())
    return [out.detach(), torch.cat(lses, dim=1).detach(), *grads]


def dense_segment(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Return out [t, H, D] and log-sum-exp [H, t] of one segment."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q, keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    last = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    key = torch.arange(k.shape[0])[None]
    read = key <= last
    if spec.window is not None:
        read &= key > last - spec.window
    scores = scores.masked_fill(~read, -torch.inf)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), values), scores.logsumexp(-1)


def errors(
    kernel: TileKernel, case: Case, spec: AttentionSpec, *, views: bool = False
) -> dict[str, float]:
    """Return the relative error of each result by name."""
    found, wanted = call(kernel, case, spec, views=views), expect(case, spec)
    return {
        name: _error(value.cpu(), reference)
        for name, value, reference in zip(NAMES, found, wanted, strict=True)
    }


def _error(value: Tensor, reference: Tensor) -> float:
    # Gradients that are zero but for rounding are judged on the scale of the unit normals.
    if float(reference.abs().max()) < 1e-3:
        return float((value.double() - reference).abs().max())
    return relative_error(value, reference)


def worst(found: dict[str, float]) -> float:
    """Return the largest error; not a number counts as endless."""
    return max(np.inf if np.isnan(error) else error for error in found.values())
