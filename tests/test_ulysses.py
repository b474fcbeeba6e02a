"""The exchange inside a CP group against one process that slices heads itself.

Every rank runs all shapes in turn; a failure names the ranks' shape and the tensor.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from libra.attention.heads import HeadSplit
from libra.attention.ulysses import HeadExchange
from tests.ranks import run_ranks
from tests.reference import dense_attention

pytestmark = pytest.mark.dist

# Moved values are equal to the bit. Attention in float64 over up to 33 keys, and gradients of
# a kv head summed in another order, round to some 10 units of 2**-53 of the largest.
TOLERANCE = 1e-14

TOKENS = (0, 1, 2, 3, 5, 8, 17, 33)
# (query, kv): even, grouped, one kv head for all, not divisible, fewer kv heads than ranks, fewer
# query heads than ranks.
HEADS = (
    (8, 8), (8, 4), (8, 2), (8, 1), (6, 6), (6, 3), (6, 2), (6, 1), (7, 7), (7, 1), (12, 4),
    (4, 2), (3, 3), (3, 1), (2, 2), (1, 1),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sequence as the single process sees it: q, k, v and a gradient of the output."""

    heads: HeadSplit
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor

    @property
    def tokens(self) -> int:
        return self.q.shape[0]


def _exchange(tokens: int, query: int, kv: int) -> HeadExchange:
    group = dist.group.WORLD
    assert group is not None
    heads = HeadSplit(query_heads=query, kv_heads=kv, cp=dist.get_world_size())
    return HeadExchange(heads=heads, tokens=tokens, group=group)


def _case(exchange: HeadExchange) -> Case:
    heads, tokens = exchange.heads, exchange.tokens
    query, kv = heads.query_heads, heads.kv_heads
    generator = torch.Generator().manual_seed(1000 * tokens + 10 * query + kv)
    q, k, v, grad = (
        torch.randn(tokens, count, 3, generator=generator, dtype=torch.float64)
        for count in (query, kv, kv, query)
    )
    return Case(heads=heads, q=q, k=k, v=v, grad=grad)


def _cases() -> Iterator[tuple[str, Case, HeadExchange]]:
    for tokens, (query, kv) in itertools.product(TOKENS, HEADS):
        exchange = _exchange(tokens, query, kv)
        name = f"{tokens} tokens, {query}/{kv} heads on {exchange.heads.cp} ranks"
        yield name, _case(exchange), exchange


def _rows(tokens: int, rank: int) -> slice:
    cp = dist.get_world_size()
    return slice(rank * tokens // cp, (rank + 1) * tokens // cp)


def _shard(x: Tensor, rank: int, *, fused: bool) -> Tensor:
    """Return a rank's rows, strided as by a projection of q, k and v at once or by [H, t, D]."""
    own = x[_rows(x.shape[0], rank)].detach()
    if fused:
        wide = torch.cat([own, own + 1], dim=1).requires_grad_()
        return wide[:, : own.shape[1]]
    return own.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()


def _heads_of(case: Case, rank: int, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Return what a rank should hold: its query heads, and each kv head one of them reads."""
    # Written out head by head, apart from HeadSplit's arithmetic of ranges.
    cp, group = case.heads.cp, case.heads.group
    queries = [
        head
        for head in range(case.heads.query_heads)
        if rank * q.shape[1] // cp <= head < (rank + 1) * q.shape[1] // cp
    ]
    kvs = sorted({head // group for head in queries})
    return [q[:, queries], k[:, kvs], v[:, kvs]]


def _differing(name: str, rows: slice, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[str]:
    """Name those of q, k and v, in turn, that are not a shard of the whole ones."""
    wrong = []
    for what, (ours, whole) in zip("qkv", pairs, strict=False):
        expected = whole.detach()[rows]
        # Of the whole tensor's largest value, or the inputs' size where all of it cancels.
        scale = max(1.0, float(whole.detach().abs().max())) if whole.numel() else 1.0
        same_shape = ours.shape == expected.shape
        if not (same_shape and torch.allclose(ours, expected, rtol=0.0, atol=TOLERANCE * scale)):
            wrong.append(f"{name}: {what}")
    return wrong


def _split(rank: int) -> list[str]:
    wrong = []
    for name, case, exchange in _cases():
        mine = [_shard(x, rank, fused=case.tokens % 2 == 0) for x in (case.q, case.k, case.v)]
        own = exchange.split(*mine)
        expected = _heads_of(case, rank, case.q, case.k, case.v)
        wrong += [
            f"{name}: not equal"
            for a, b in zip(own, expected, strict=True)
            if not torch.equal(a, b)
        ]

        # The single process gives every rank's copies to one loss.
        full = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
        loss = full[0].sum() * 0
        for each in range(case.heads.cp):
            for part, held in enumerate(_heads_of(case, each, *full)):
                loss = loss + (held * _weight(held, each, part)).sum()
        exact = torch.autograd.grad(loss, full)
        weights = [_weight(held, rank, part) for part, held in enumerate(own)]
        grads = torch.autograd.grad(own, mine, weights)
        wrong += _differing(name, _rows(case.tokens, rank), zip(grads, exact, strict=True))
    return wrong


def _weight(like: Tensor, rank: int, part: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * rank + part)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def _join(rank: int) -> list[str]:
    wrong = []
    for name, case, exchange in _cases():
        (own, _, _) = _heads_of(case, rank, case.q, case.k, case.v)
        own = own.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
        joined = exchange.join(own)
        rows = _rows(case.tokens, rank)
        if not torch.equal(joined, case.q[rows]):
            wrong.append(f"{name}: not equal")
        (grad,) = torch.autograd.grad(joined, own, case.grad[rows])
        (expected, _, _) = _heads_of(case, rank, case.grad, case.k, case.v)
        if not torch.equal(grad, expected):
            wrong.append(f"{name}: gradient not equal")
    return wrong


def _attend(rank: int) -> list[str]:
    wrong = []
    for name, case, exchange in _cases():
        lengths = [case.tokens - case.tokens // 3, case.tokens // 3]
        mine = [_shard(x, rank, fused=case.tokens % 2 == 1) for x in (case.q, case.k, case.v)]
        q, k, v = exchange.split(*mine)
        out = q * 1.0
        if q.shape[1]:
            first, last = case.heads.query_range(rank)
            kv = torch.arange(first, last) // case.heads.group - case.heads.kv_range(rank)[0]
            out = dense_attention(q, k[:, kv], v[:, kv], lengths)
        joined = exchange.join(out)
        rows = _rows(case.tokens, rank)
        grads = torch.autograd.grad(joined, mine, case.grad[rows])

        full = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
        reference = dense_attention(full[0], full[1], full[2], lengths)
        exact = torch.autograd.grad(reference, full, case.grad)
        wrong += _differing(name, rows, zip(grads, exact, strict=True))
        wrong += _differing(f"{name}: output", rows, [(joined, reference)])
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_rank_gets_its_heads_and_their_gradients_come_home(ranks: int) -> None:
    """For any tokens and heads: q, k, v to the bit; dQ, and dK and dV summed over their copies."""
    assert run_ranks(_split, ranks) == [[]] * ranks


@pytest.mark.parametrize("ranks", [3, 4])
def test_outputs_come_home_and_gradients_go_out(ranks: int) -> None:
    """For any tokens and heads, the output and its gradient are moved to the bit."""
    assert run_ranks(_join, ranks) == [[]] * ranks


@pytest.mark.parametrize("ranks", [3, 4])
def test_attention_between_split_and_join_is_that_of_one_process(ranks: int) -> None:
    """Output and each gradient agree with dense attention, also where ranks hold no head."""
    assert run_ranks(_attend, ranks) == [[]] * ranks


# The first two ones vanish beside the large value when they are added to it one by one.
LARGE = {torch.bfloat16: 256.0, torch.float16: 2048.0}


def _halves(rank: int) -> list[float]:
    sums = []
    for dtype, large in LARGE.items():
        exchange = _exchange(3, 3, 1)
        mine = [torch.ones(1, heads, 2, dtype=dtype).requires_grad_() for heads in (3, 1, 1)]
        own = exchange.split(*mine)
        grads = [torch.full_like(x, 1.0 if rank else large) for x in own]
        _, dk, dv = torch.autograd.grad(own, mine, grads)
        assert dk.dtype == dv.dtype == dtype
        sums += [float(dk.min()) - large, float(dv.max()) - large]
    return sums


def test_copies_of_a_half_kv_head_are_summed_in_single_precision() -> None:
    """A sum over three ranks rounds once: ones are not lost beside the largest gradient."""
    assert run_ranks(_halves, 3) == [[2.0] * 4] * 3


def _count(rank: int) -> tuple[int, int, bool]:
    calls, real = [], dist.all_to_all_single

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(len(args))
        return real(*args, **kwargs)  # type: ignore[arg-type]

    dist.all_to_all_single = counted
    exchange = _exchange(17, 6, 2)
    case = _case(exchange)
    mine = [_shard(x, rank, fused=True) for x in (case.q, case.k, case.v)]
    q, k, v = exchange.split(*mine)
    forward = len(calls)
    torch.autograd.grad((q, k, v), mine, (q, k, v))
    storages = {x.untyped_storage().data_ptr() for x in (q, k, v)}
    return forward, len(calls) - forward, len(storages) == 1


def test_one_exchange_each_way_and_nothing_is_unpacked() -> None:
    """q, k and v travel together, and are used in the buffer that they arrived in."""
    assert run_ranks(_count, 2) == [(1, 1, True)] * 2


def _alone(rank: int) -> list[bool]:
    exchange = _exchange(5, 4, 2)
    q, k, v = (torch.ones(5, heads, 2).transpose(0, 1) for heads in (4, 2, 2))
    own = exchange.split(q, k, v)
    with pytest.raises(ValueError, match=r"heads.cp=2: must be the group's 1 ranks"):
        replace(exchange, heads=HeadSplit(query_heads=4, kv_heads=2, cp=2))
    return [a is b for a, b in zip(own, (q, k, v), strict=True)] + [exchange.join(q) is q]


def test_one_rank_gets_its_own_tensors_back() -> None:
    """Without context parallelism nothing is copied; heads for other ranks are refused."""
    assert run_ranks(_alone, 1) == [[True] * 4]
