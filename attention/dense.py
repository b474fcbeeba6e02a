"""Tile attention in plain torch: any device and dtype, softcap and window.

Every flash kernel is judged against it on a GPU, and it takes what they refuse. Query rows go in
blocks, so that the scores never take more than a fixed amount of memory.

Shapes: t query rows and s keys of a segment; H query heads; G kv heads; J = H / G; D head dim;
r query rows and c keys of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from libra.attention.guards import one_segment
from libra.attention.segments import Segments
from libra.attention.spec import AttentionSpec

# Scores of a block: 256 MiB in float32, a few copies of which are alive at a time.
_BLOCK_SCORES = 1 << 26
_BLOCK_ROWS = 512


class MathKernel:
    """Explicit softmax, in float32 for half precision."""

    name = "math"
    packed = False

    def __init__(self, *, block_rows: int = _BLOCK_ROWS) -> None:
        """Take at most ``block_rows`` query rows at a time."""
        self._block_rows = block_rows

    def refusal(
        self, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, head_dim: int
    ) -> str | None:
        """Return why it cannot do this, None if it can."""
        if not dtype.is_floating_point:
            return f"takes floating point numbers, not {str(dtype).removeprefix('torch.')}"
        return None if head_dim >= 1 else f"takes head_dim from 1, not {head_dim}"

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
        with torch.autocast(q.device.type, enabled=False):
            keys, values = _heads_first(k), _heads_first(v)
            for block in self._blocks(q, k, row_begin, spec):
                scores = block.scores(_grouped(q[block.rows], k.shape[1]), keys, spec)
                scores.masked_fill_(block.hidden(spec, q.device), float("-inf"))
                lse = scores.logsumexp(dim=-1)
                weights = scores.sub_(lse.unsqueeze(-1)).exp_()
                out[block.rows] = _ungrouped(_times(weights, values[:, block.keys]))
                logsumexp[:, block.rows] = lse.flatten(0, 1)

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
        with torch.autocast(q.device.type, enabled=False):
            keys, values = _heads_first(k), _heads_first(v)
            dkeys, dvalues = torch.zeros_like(keys), torch.zeros_like(values)
            for block in self._blocks(q, k, row_begin, spec):
                queries, upstream, result = (
                    _grouped(x[block.rows], k.shape[1]) for x in (q, grad_out, out)
                )
                scores = block.scores(queries, keys, spec)
                lse = logsumexp[:, block.rows].unflatten(0, (k.shape[1], -1)).unsqueeze(-1)
                weights = (scores - lse).exp_()
                weights.masked_fill_(block.hidden(spec, q.device), 0.0)
                dvalues[:, block.keys] += _transposed_times(weights, upstream)
                dscores = _times(upstream, values[:, block.keys].transpose(1, 2))
                dscores -= (upstream * result).sum(dim=-1, keepdim=True)
                dscores *= weights
                if spec.softcap is not None:
                    dscores *= 1 - (scores / spec.softcap).square_()
                grads[0][block.rows] = _ungrouped(_times(dscores, keys[:, block.keys]) * spec.scale)
                dkeys[:, block.keys] += _transposed_times(dscores, queries) * spec.scale
            grads[1].copy_(dkeys.transpose(0, 1))
            grads[2].copy_(dvalues.transpose(0, 1))

    def _blocks(
        self, q: Tensor, k: Tensor, row_begin: int, spec: AttentionSpec
    ) -> Iterator["_Block"]:
        rows = max(1, min(self._block_rows, _BLOCK_SCORES // (q.shape[1] * k.shape[0])))
        for begin in range(0, q.shape[0], rows):
            end = min(begin + rows, q.shape[0])
            first = 0 if spec.window is None else max(0, row_begin + begin + 1 - spec.window)
            yield _Block(
                rows=slice(begin, end), keys=slice(first, row_begin + end), row_begin=row_begin
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Query rows and the keys that one of them reads.

    Attributes:
        rows: rows of the segment.
        keys: keys of the segment.
        row_begin: the key of the segment's first query row.
    """

    rows: slice
    keys: slice
    row_begin: int

    def scores(self, queries: Tensor, keys: Tensor, spec: AttentionSpec) -> Tensor:
        """Return [G, J, r, c] of queries [G, J, r, D] and the segment's keys [G, s, D]."""
        scores = _times(queries, keys[:, self.keys].transpose(1, 2)) * spec.scale
        if spec.softcap is None:
            return scores
        return scores.div_(spec.softcap).tanh_().mul_(spec.softcap)

    def hidden(self, spec: AttentionSpec, device: torch.device) -> Tensor:
        """Return [r, c], true where a row does not read a key."""
        rows = torch.arange(self.rows.start, self.rows.stop, device=device) + self.row_begin
        behind = rows[:, None] - torch.arange(self.keys.start, self.keys.stop, device=device)
        hidden = behind < 0
        return hidden if spec.window is None else hidden | (behind >= spec.window)


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _heads_first(x: Tensor) -> Tensor:
    """Turn [s, G, D] into [G, s, D]."""
    return _precise(x).transpose(0, 1)


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """Turn [r, H, D] into [G, J, r, D]."""
    grouped: Tensor = _precise(x).unflatten(1, (kv_heads, -1))
    return grouped.permute(1, 2, 0, 3)


def _ungrouped(x: Tensor) -> Tensor:
    """Turn [G, J, r, D] into [r, H, D]."""
    return x.flatten(0, 1).transpose(0, 1)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return [G, J, r, b] of x [G, J, r, a] and y [G, a, b], one product a kv head."""
    product: Tensor = (x.flatten(1, 2) @ y).unflatten(1, x.shape[1:3])
    return product


def _transposed_times(x: Tensor, y: Tensor) -> Tensor:
    """Return [G, a, b] of x [G, J, r, a] and y [G, J, r, b], summed over a kv head's rows."""
    return x.flatten(1, 2).transpose(1, 2) @ y.flatten(1, 2)
