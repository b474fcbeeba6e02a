"""The pooled operator computes what one process computes, output and each gradient apart.

Start here when touching the exchange, the kernel or the plan: a failure names the tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.observer import KernelKind, Traffic
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from tests.ranks import run_ranks
from tests.reference import dense_attention, long_tailed_lengths, relative_error

# The reference runs in float64. Sums of up to 512 products of unit normals round to a few
# units in the last place of each dtype; these leave a factor of ten.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 4e-6}
TOKENS = 512
SEEDS = range(4)


@dataclass(frozen=True, kw_only=True)
class Heads:
    query: int
    kv: int
    dim: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rank saw of one case."""

    dtype: torch.dtype
    moved: int
    errors: dict[str, float]


def _lengths(seed: int, dp: int) -> list[list[int]]:
    """Return one sequence of long documents beside one of short, and so on."""
    rng = np.random.default_rng(seed)
    return [long_tailed_lengths(rng, TOKENS, 300 if group % 2 else 12) for group in range(dp)]


def _tensors(seed: int, heads: Heads, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(TOKENS, count, heads.dim, generator=generator, dtype=torch.float64).to(dtype)
        for count in (heads.query, heads.kv, heads.kv, heads.query)
    ]


def _run_case(
    attention: PooledAttention, seed: int, heads: Heads, dtype: torch.dtype, *, home: bool
) -> Outcome:
    pools, shape = attention.pools, attention.pools.shape
    lengths = _lengths(seed, shape.dp)
    first = pools.pool * shape.sequences_per_pool
    cell = [np.array(part) for part in lengths[first : first + shape.sequences_per_pool]]
    layout = make_layout(
        cell,
        pools.place,
        tokens=TOKENS,
        heads=HeadSplit(query_heads=heads.query, kv_heads=heads.kv, cp=shape.cp),
        cp_rank=pools.cp_rank,
        settings=PlanSettings(pooling=not home, block_rows=16),
    )
    q, k, v, grad = _tensors(seed * 97 + pools.dp_rank, heads, dtype)
    shard = TOKENS // shape.cp
    own = slice(pools.cp_rank * shard, (pools.cp_rank + 1) * shard)
    mine = [x[own].clone().requires_grad_() for x in (q, k, v)]
    out = attention(*mine, layout)
    out.backward(grad[own])
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    expected = dense_attention(exact[0], exact[1], exact[2], lengths[pools.dp_rank])
    expected.backward(grad.double())
    errors = {"out": relative_error(out.detach(), expected.detach()[own])}
    for name, got, wanted in zip(("dq", "dk", "dv"), mine, exact, strict=True):
        assert got.grad is not None
        assert wanted.grad is not None
        errors[name] = relative_error(got.grad, wanted.grad[own])
    return Outcome(dtype=dtype, moved=layout.plan.moved, errors=errors)


def _run_cases(rank: int, cp: int, pool: int, heads: list[Heads], home: bool) -> list[Outcome]:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // cp, cp), mesh_dim_names=("dp", "cp"))
    attention = PooledAttention(SequencePools(mesh, pool))
    return [
        _run_case(attention, seed, shape, dtype, home=home)
        for dtype in TOLERANCE
        for shape in heads
        for seed in SEEDS
    ]


GROUPED = [
    Heads(query=8, kv=4, dim=32),
    Heads(query=4, kv=4, dim=64),
    Heads(query=16, kv=2, dim=32),
]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("ranks", "cp", "pool"), [(2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 1, 4), (4, 1, 2)]
)
def test_pooled_attention_equals_one_process(ranks: int, cp: int, pool: int) -> None:
    """Tiles moved, cut and exchanged give the output and gradients of one process."""
    outcomes = run_ranks(_run_cases, ranks, cp, pool, GROUPED, False, timeout_s=110)

    assert pool == 1 or any(outcome.moved for own in outcomes for outcome in own)
    for dtype, tolerance in TOLERANCE.items():
        worst = {
            name: max(o.errors[name] for own in outcomes for o in own if o.dtype == dtype)
            for name in ("out", "dq", "dk", "dv")
        }
        assert all(error < tolerance for error in worst.values()), (dtype, worst)


@pytest.mark.dist
def test_home_plan_equals_one_process() -> None:
    """Plain Ulysses is the same code with nothing moved, and as exact."""
    outcomes = run_ranks(_run_cases, 2, 1, 2, GROUPED[:1], True)

    assert not any(outcome.moved for own in outcomes for outcome in own)
    assert all(max(o.errors.values()) < TOLERANCE[o.dtype] for own in outcomes for o in own)


class _Watcher:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.layouts: list[BatchLayout] = []
        self.kernels: list[tuple[KernelKind, Sequence[int]]] = []
        self.traffic: list[Traffic] = []
        self.mismatches = 0

    def begin(self, layout: BatchLayout) -> None:
        self.layouts.append(layout)

    def start(self) -> object:
        return self

    def kernel(self, mark: object, kind: KernelKind, features: Sequence[int]) -> None:
        assert mark is self
        self.kernels.append((kind, features))

    def exchange(self, issued: object, mark: object, traffic: Traffic) -> None:
        assert issued is mark is self
        self.traffic.append(traffic)

    def mismatch(self) -> None:
        self.mismatches += 1


def _pools(sequences_per_pool: int) -> SequencePools:
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "cp"))
    return SequencePools(mesh, sequences_per_pool)


def _layout(pools: SequencePools, tail: int = 0) -> BatchLayout:
    """A long document beside short ones; ``tail`` makes a rank's own, different plan."""
    cell = [np.array([TOKENS - tail]), np.full(TOKENS // 8, 8)]
    return make_layout(
        cell,
        pools.place,
        tokens=TOKENS,
        heads=HeadSplit(query_heads=4, kv_heads=2),
        settings=PlanSettings(block_rows=16),
    )


def _watch(rank: int) -> tuple[dict[str, int], list[Traffic], int]:
    pools = _pools(2)
    attention = PooledAttention(pools)
    watcher = _Watcher()
    attention.observer = watcher
    q, k, v, grad = _tensors(rank, Heads(query=4, kv=2, dim=32), torch.float32)
    attention(q.requires_grad_(), k, v, _layout(pools)).backward(grad)
    pairs = {"forward": 0, "backward": 0}
    for kind, features in watcher.kernels:
        assert (kind.backend, kind.head_dim, kind.group_heads) == ("sdpa-cpu", 32, 2)
        pairs[kind.direction] += features[3]
    return pairs, watcher.traffic, len(watcher.layouts)


@pytest.mark.dist
def test_observer_sees_all_work_once() -> None:
    """Every causal pair of the pool is reported once forward, once backward, on some rank."""
    seen = run_ranks(_watch, 2)

    # Two kv heads a rank; a document of L tokens has L (L + 1) / 2 causal pairs.
    expected = 2 * (TOKENS * (TOKENS + 1) // 2 + TOKENS // 8 * 36)
    for direction in ("forward", "backward"):
        assert sum(pairs[direction] for pairs, _, _ in seen) == expected
        # Balanced to within a block of the longest document.
        assert max(pairs[direction] for pairs, _, _ in seen) < 0.6 * expected
    assert all(layouts == 1 for _, _, layouts in seen)
    # Only the owner of the long document dispatches; both then give results back or wait.
    assert sum(own.sent_bytes for _, traffic, _ in seen for own in traffic) > 0


@pytest.mark.dist
def test_both_ends_tell_the_same_of_a_wave() -> None:
    """Who sends and who receives see one message of as many bytes, so either may time it."""
    by_rank = [traffic for _, traffic, _ in run_ranks(_watch, 2)]
    waves = [
        sorted((own.busier_bytes, own.messages, own.device, own.backend) for own in traffic)
        for traffic in by_rank
    ]

    assert waves[0] == waves[1]
    assert {wave[1:] for wave in waves[0]} == {(1, "cpu", "gloo")}
    sent = sum(own.sent_bytes for traffic in by_rank for own in traffic)
    assert sum(wave[0] for wave in waves[0]) == sent


def _disagree(rank: int) -> tuple[int, int, float, bool]:
    pools = _pools(2)
    attention = PooledAttention(pools)
    watcher = _Watcher()
    attention.observer = watcher
    layout = _layout(pools, tail=rank)
    heads = Heads(query=4, kv=2, dim=32)
    q, k, v, _ = _tensors(rank, heads, torch.float64)
    out = attention(q, k, v, layout)
    expected = dense_attention(q, k, v, layout.document_lengths.tolist())
    agreed = attention(q, k, v, _layout(pools))
    expected_agreed = dense_attention(q, k, v, _layout(pools).document_lengths.tolist())
    worst = max(relative_error(out, expected), relative_error(agreed, expected_agreed))
    return attention.plan_mismatches, watcher.mismatches, worst, layout.plan.moved > 0


def _disagree_on_pooling(rank: int) -> tuple[int, float]:
    pools = _pools(2)
    attention = PooledAttention(pools)
    cell = [np.array([TOKENS]), np.full(TOKENS // 8, 8)]
    how = PlanSettings(block_rows=16, pooling=rank == 0)
    worst = 0.0
    for step in range(3):
        layout = make_layout(
            cell,
            pools.place,
            tokens=TOKENS,
            heads=HeadSplit(query_heads=4, kv_heads=2),
            settings=how,
            step=step,
        )
        q, k, v, _ = _tensors(step, Heads(query=4, kv=2, dim=32), torch.float64)
        expected = dense_attention(q, k, v, layout.document_lengths.tolist())
        worst = max(worst, relative_error(attention(q, k, v, layout), expected))
    return attention.plan_mismatches, worst


@pytest.mark.dist
@pytest.mark.fault
def test_a_rank_that_would_stay_home_sees_that_the_others_would_not() -> None:
    """Where one rank's plan moves tiles and another's none, all run home, in every step."""
    for mismatches, error in run_ranks(_disagree_on_pooling, 2):
        assert mismatches == 3
        assert error < 1e-14


@pytest.mark.dist
@pytest.mark.fault
def test_ranks_with_different_plans_run_home_and_say_so() -> None:
    """Plans that differ are never exchanged: the cell runs at home, is counted, and goes on."""
    for mismatches, observed, error, moved in run_ranks(_disagree, 2):
        assert moved
        assert mismatches == observed == 1
        assert error < 1e-14


def _refuse(rank: int) -> list[str]:
    pools = _pools(1)
    attention = PooledAttention(pools)
    layout = make_layout([[8, 8]], 0, tokens=16, heads=HeadSplit(query_heads=4, kv_heads=4))
    x = torch.zeros(16, 4, 32)
    bad = {
        "short": (x[:8], x[:8], x[:8]),
        "flat": (x[:, 0], x, x),
        "dtype": (x, x.double(), x),
        "head_dim": (x, x[..., :16], x),
        "kv_heads": (x, x[:, :3], x[:, :3]),
        "k_v": (x, x[:, :2], x),
    }
    messages = []
    for q, k, v in bad.values():
        with pytest.raises(ValueError, match=r"must|differs") as raised:
            attention(q, k, v, layout)
        messages.append(str(raised.value))
    with pytest.raises(ValueError, match="place"):
        attention(x, x, x, replace(layout, place=1, lengths=(np.array([8, 8]),)))
    return messages


@pytest.mark.dist
def test_bad_shapes_are_refused_before_any_exchange() -> None:
    """Every wrong shape, dtype or place is a ``ValueError`` that names the tensor."""
    (messages,) = run_ranks(_refuse, 1)

    assert all(message.split()[0].rstrip(",") in {"q", "k", "v"} for message in messages), messages
