"""One case of the pooled operator on real ranks, and how far each tensor is from the reference.

Cases are plain data: drawn in the test's process, run in the ranks, printed when they fail.

Shapes: T tokens of a sequence; t of a rank's shard; H query heads; G kv heads; D head dim.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.reference import dense_attention


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """``ranks`` as CP groups of ``cp``, in pools of ``pool`` groups; the last may be smaller.

    Pools may have up to ``largest`` groups where elastic.
    """

    ranks: int
    cp: int
    pool: int
    largest: int = 0

    @property
    def dp(self) -> int:
        return self.ranks // self.cp


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a plan may do.

    Attributes:
        pooling: off is plain Ulysses.
        block_rows: cuts fall on multiples of this.
        min_gain_permille: stay home when the slowest rank would gain less.
        waves: received tiles come in this many exchanges.
        memory_permille: what a rank may hold, over its own; 1000 is little more than that.
        speeds_permille: of each rank of the job; empty when all are equal.
        resend_in_backward: send moved queries and keys again instead of keeping them.
    """

    pooling: bool = True
    block_rows: int = 1
    min_gain_permille: int = 0
    waves: int = 1
    memory_permille: int = 2000
    speeds_permille: tuple[int, ...] = ()
    resend_in_backward: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A packed sequence: runs of (documents, tokens each), then padding."""

    runs: tuple[tuple[int, int], ...]
    padding: int = 0

    @property
    def lengths(self) -> list[int]:
        return [length for count, length in self.runs for _ in range(count)]

    @property
    def tokens(self) -> int:
        return sum(self.lengths) + self.padding


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One call of the operator, forward and backward, on every rank of the mesh.

    Attributes:
        sequences: one for each CP group.
        equal_tokens: pad all to the longest, else each keeps its own number of tokens.
        dtype: name of torch's.
        seed: of the tensors.
    """

    mesh: Mesh
    heads: HeadSplit
    head_dim: int
    sequences: tuple[Packed, ...]
    equal_tokens: bool
    policy: Policy
    dtype: str
    seed: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of each sequence, all its padding included."""
        own = tuple(packed.tokens for packed in self.sequences)
        return (max(own),) * len(own) if self.equal_tokens else own


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one rank saw of a case: each tensor's error, and whether tiles moved."""

    errors: dict[str, float]
    moved: int
    plan_mismatches: int


# Groups are made once: every rank of these workers meets the same meshes in the same order.
_pools: dict[Mesh, SequencePools] = {}


def run_case(rank: int, case: Case) -> Outcome:
    """Run a case on this rank and compare its shard with the dense float64 reference."""
    pools = mesh_pools(case.mesh)
    attention = PooledAttention(pools, resend_in_backward=case.policy.resend_in_backward)
    layout = _layout(case, pools)
    tokens, cp = case.tokens[pools.dp_rank], case.mesh.cp
    own = slice(pools.cp_rank * tokens // cp, (pools.cp_rank + 1) * tokens // cp)
    *inputs, grad = _tensors(case, pools.dp_rank)
    mine = [x[own].clone().requires_grad_() for x in inputs]
    out = attention(*mine, layout)
    out.backward(grad[own])
    least = max((float(x.abs().max()) for x in (*inputs, grad) if x.numel()), default=1.0)
    exact = [x.double().requires_grad_() for x in inputs]
    expected = dense_attention(exact[0], exact[1], exact[2], case.sequences[pools.dp_rank].lengths)
    wanted = torch.autograd.grad(expected, exact, grad.double(), materialize_grads=True)
    errors = {"out": _error(out.detach(), expected.detach(), own, least)}
    for name, x, reference in zip(("dq", "dk", "dv"), mine, wanted, strict=True):
        assert x.grad is not None
        errors[name] = _error(x.grad, reference, own, least)
    return Outcome(
        errors=errors, moved=layout.plan.moved, plan_mismatches=attention.plan_mismatches
    )


def mesh_pools(mesh: Mesh) -> SequencePools:
    """Return the mesh's pools; all ranks must ask for the same meshes in the same order."""
    if mesh not in _pools:
        assert dist.get_world_size() == mesh.ranks
        sizes = (mesh.dp, mesh.cp)
        device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "cp"))
        _pools[mesh] = SequencePools(device_mesh, mesh.pool, largest_pool=mesh.largest)
    return _pools[mesh]


def _layout(case: Case, pools: SequencePools) -> BatchLayout:
    """Return this rank's layout of its pool's cell."""
    first = pools.dp_rank - pools.place
    members = range(first, first + pools.shape.pool_size(pools.pool))
    tokens = [case.tokens[member] for member in members]
    return make_layout(
        [np.array(case.sequences[member].lengths, dtype=np.int64) for member in members],
        pools.place,
        tokens=tokens[0] if case.equal_tokens else tokens,
        heads=case.heads,
        cp_rank=pools.cp_rank,
        cost=FLOPS_COST,
        settings=_settings(case.policy),
        speeds_permille=_speeds(case, members, pools.cp_rank),
    )


def _settings(policy: Policy) -> PlanSettings:
    return PlanSettings(
        pooling=policy.pooling,
        tolerance_permille=0,
        min_gain_permille=policy.min_gain_permille,
        block_rows=policy.block_rows,
        waves=policy.waves,
        memory_permille=policy.memory_permille,
    )


def _speeds(case: Case, members: range, cp_rank: int) -> tuple[int, ...]:
    """Return the speeds of the plane's ranks, or of all the pool's where planes differ."""
    cp, speeds = case.mesh.cp, case.policy.speeds_permille
    if not speeds:
        return ()
    columns = [cp_rank] if case.heads.even else range(cp)
    return tuple(speeds[member * cp + column] for member in members for column in columns)


def _tensors(case: Case, dp_rank: int) -> list[Tensor]:
    """Return q [T, H, D], k and v [T, G, D] and the gradient of out [T, H, D], unit normal."""
    generator = torch.Generator().manual_seed(case.seed * case.mesh.dp + dp_rank)
    query, kv = case.heads.query_heads, case.heads.kv_heads
    return [
        torch.randn(
            case.tokens[dp_rank], count, case.head_dim, generator=generator, dtype=torch.float64
        ).to(getattr(torch, case.dtype))
        for count in (query, kv, kv, query)
    ]


def _error(shard: Tensor, reference: Tensor, own: slice, least: float) -> float:
    """Return the shard's largest difference over the largest value of the whole reference.

    The gradients of a document of one token are zero and those of a few may be tiny, yet they
    are differences of what is of the inputs' size: ``least`` is the least they are compared to.
    """
    if not shard.numel():
        return 0.0
    largest = max(least, float(reference.abs().max()))
    error = float((shard.double() - reference[own]).abs().max()) / largest
    return math.inf if math.isnan(error) else error
