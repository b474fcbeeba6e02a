"""MagiAttention's runtime and the operator's home plan compute the same thing on packed documents.

It shards, dispatches and exchanges by a design of its own, and takes odd lengths and heads that no
rank count divides. It is on no package index: put a checkout of it on PYTHONPATH behind this
repository, with what ``make test-peers`` installs; without it this file is skipped.

Shapes: T tokens of a sequence, t = T / C of a rank; H query heads; G kv heads; D head dim.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.magi_on_cpu import import_magi_attention
from tests.ranks import run_ranks
from tests.reference import dense_attention, relative_error

pytestmark = [
    pytest.mark.dist,
    # Its backend makes a dense mask of all pairs, and compiles on the first call.
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("magi_attention", "triton", "debugpy")),
        reason="needs magi_attention on PYTHONPATH and make test-peers",
    ),
]

CP = 2
LENGTHS = [137, 2041, 89, 781, 1048]
TOKENS = sum(LENGTHS)
HEAD_DIM = 32
NAMES = ("out", "dq", "dk", "dv")
# Against float64. Sums of up to 2041 products of unit normals round to a few units in the last
# place of float32; this leaves a factor of ten. Two results that both keep to it differ by no
# more than twice as much.
TOLERANCE = 8e-6


def _layout(pools: SequencePools, q: Tensor, k: Tensor) -> BatchLayout:
    return make_layout(
        [np.array(LENGTHS)],
        pools.place,
        tokens=TOKENS,
        heads=HeadSplit(query_heads=q.shape[1], kv_heads=k.shape[1], cp=CP),
        cp_rank=pools.cp_rank,
        settings=PlanSettings(pooling=False),
    )


def _tensors(heads: tuple[int, int]) -> list[Tensor]:
    """Return q, k, v and the output's gradient of the whole sequence."""
    generator = torch.Generator().manual_seed(heads[0])
    query, kv = heads
    return [
        torch.randn(TOKENS, count, HEAD_DIM, generator=generator)
        for count in (query, kv, kv, query)
    ]


def _attend(
    attention: Callable[[Tensor, Tensor, Tensor], Tensor], tensors: list[Tensor]
) -> dict[str, Tensor]:
    """Return the output and the gradients of q, k and v."""
    *inputs, grad = tensors
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attention(*leaves)
    grads = torch.autograd.grad(out, leaves, grad)
    return dict(zip(NAMES, (out.detach(), *grads), strict=True))


def _pooled(rank: int, heads: tuple[int, int]) -> dict[str, Tensor]:
    """Return what the operator computes on this rank's shard."""
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "cp"))
    pools = SequencePools(mesh, 1)
    attention = PooledAttention(pools)
    own = slice(rank * TOKENS // CP, (rank + 1) * TOKENS // CP)
    return _attend(
        lambda q, k, v: attention(q, k, v, _layout(pools, q, k)), [x[own] for x in _tensors(heads)]
    )


def _magi(_: int, heads: tuple[int, int]) -> dict[str, Tensor]:
    """Return what MagiAttention computes, gathered on every rank: its shards are no row ranges."""
    package: Any = import_magi_attention()
    config: Any = import_module("magi_attention.config")
    ranges: Any = import_module("magi_attention.common.ranges")
    enum: Any = import_module("magi_attention.common.enum")
    documents = [list(ends) for ends in pairwise(accumulate(LENGTHS, initial=0))]
    runtime = package.init_dist_attn_runtime_mgr(
        q_ranges=ranges.AttnRanges.from_ranges(documents),
        k_ranges=ranges.AttnRanges.from_ranges(documents),
        attn_mask_type=[enum.AttnMaskType.CAUSAL] * len(documents),
        total_seqlen_q=TOKENS,
        total_seqlen_k=TOKENS,
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        head_dim=HEAD_DIM,
        chunk_size=64,
        cp_group=dist.group.WORLD,
        dist_attn_config=config.DistAttnConfig(
            dispatch_config=config.DispatchConfig(
                alg=config.MinHeapDispatchAlg(), uneven_shard=True
            )
        ),
    )

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = (runtime.dispatch_qo(q), runtime.dispatch_kv(k), runtime.dispatch_kv(v))
        return runtime.undispatch_qo(runtime.calc_attn(*own)[0])  # type: ignore[no-any-return]

    return _attend(attention, _tensors(heads))


@pytest.mark.parametrize(
    "heads",
    [(8, 2), (7, 1)],
    ids=["8/2", "7/1"],
)
def test_home_plan_equals_magi_attention_and_one_process(heads: tuple[int, int]) -> None:
    """Output, dQ, dK and dV of packed odd lengths agree with MagiAttention's and one process'."""
    peers = run_ranks(_magi, CP, heads, timeout_s=300)
    ranks = run_ranks(_pooled, CP, heads)

    exact = _attend(
        lambda q, k, v: dense_attention(q, k, v, LENGTHS), [x.double() for x in _tensors(heads)]
    )
    for part in NAMES:
        pooled = torch.cat([rank[part] for rank in ranks])
        assert relative_error(pooled, exact[part]) < TOLERANCE, ("pooled", part)
        for peer in peers:
            assert relative_error(peer[part], exact[part]) < TOLERANCE, ("magi", part)
            assert relative_error(pooled, peer[part].double()) < 2 * TOLERANCE, part
