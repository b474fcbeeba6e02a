"""DeepSpeed's own Ulysses attention and the operator's home plan compute the same thing.

DeepSpeed shares no code with the operator, nor with the reference that both are judged by. It is
no dependency: ``make test-peers`` installs it, and without it this file is skipped.

Shapes: T tokens of a sequence, t = T / C of a rank; H query heads; G kv heads; D head dim.
"""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.deepspeed_on_cpu import Attention, deepspeed_attention
from tests.ranks import run_ranks
from tests.reference import dense_attention, relative_error

# Not importorskip: only the ranks need DeepSpeed, and importing it changes the whole process.
pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed: make test-peers"),
]

CP = 2
TOKENS = 258
HEAD_DIM = 32
NAMES = ("out", "dq", "dk", "dv")
# Against float64. Sums of up to 258 products of unit normals round to a few units in the last
# place of float32; this leaves a factor of ten. Two results that both keep to it differ by no
# more than twice as much.
TOLERANCE = 4e-6


def _layout(pools: SequencePools, q: Tensor, k: Tensor) -> BatchLayout:
    """One document that fills its sequence: DeepSpeed knows no packing."""
    return make_layout(
        [np.array([TOKENS])],
        pools.place,
        tokens=TOKENS,
        heads=HeadSplit(query_heads=q.shape[1], kv_heads=k.shape[1], cp=CP),
        cp_rank=pools.cp_rank,
        settings=PlanSettings(pooling=False),
    )


def _pooled(mesh: DeviceMesh) -> Attention:
    pools = SequencePools(mesh, 1)
    attention = PooledAttention(pools)
    return lambda q, k, v: attention(q, k, v, _layout(pools, q, k))


def _tensors(heads: tuple[int, int]) -> list[Tensor]:
    """Return q, k, v and the output's gradient of the whole sequence."""
    generator = torch.Generator().manual_seed(heads[1])
    query, kv = heads
    return [
        torch.randn(TOKENS, count, HEAD_DIM, generator=generator)
        for count in (query, kv, kv, query)
    ]


def _attend(attention: Attention, tensors: list[Tensor]) -> dict[str, Tensor]:
    """Return the output and the gradients of q, k and v."""
    *inputs, grad = tensors
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attention(*leaves)
    grads = torch.autograd.grad(out, leaves, grad)
    return dict(zip(NAMES, (out.detach(), *grads), strict=True))


def _run_both(rank: int, heads: tuple[int, int]) -> dict[str, dict[str, Tensor]]:
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "cp"))
    shard = TOKENS // CP
    own = [x[rank * shard : (rank + 1) * shard] for x in _tensors(heads)]
    return {
        "pooled": _attend(_pooled(mesh), own),
        "deepspeed": _attend(deepspeed_attention(mesh), own),
    }


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)], ids=["mha", "gqa"])
def test_home_plan_equals_deepspeed_and_one_process(heads: tuple[int, int]) -> None:
    """Output, dQ, dK and dV each agree with DeepSpeed's, and both with one process."""
    ranks = run_ranks(_run_both, CP, heads, timeout_s=100)

    whole = {
        name: {part: torch.cat([rank[name][part] for rank in ranks]) for part in NAMES}
        for name in ("pooled", "deepspeed")
    }
    exact = _attend(
        lambda q, k, v: dense_attention(q, k, v, [TOKENS]), [x.double() for x in _tensors(heads)]
    )
    for part in NAMES:
        pooled, peer = whole["pooled"][part], whole["deepspeed"][part]
        assert relative_error(pooled, exact[part]) < TOLERANCE, ("pooled", part)
        assert relative_error(peer, exact[part]) < TOLERANCE, ("deepspeed", part)
        assert relative_error(pooled, peer.double()) < 2 * TOLERANCE, ("pooled, deepspeed", part)
