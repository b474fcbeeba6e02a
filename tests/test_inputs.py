"""What does not fit is refused by name, before any rank is sent anything."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from libra.attention.heads import HeadSplit
from libra.attention.layout import BatchLayout, make_layout
from libra.attention.pooled import PooledAttention
from libra.attention.sdpa import SdpaCpuKernel
from tests.attention_case import Mesh, mesh_pools
from tests.small_case import HEAD_DIM, attend, small_case, small_layout
from tests.workers import RankWorkers

MESH = Mesh(ranks=2, cp=1, pool=2)
ELASTIC = Mesh(ranks=2, cp=1, pool=1, largest=2)
ROWS, HEADS = 96, 2
COLLECTIVES = (
    "all_to_all_single",
    "all_to_all",
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "broadcast",
    "barrier",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is given to the operator."""

    q: Tensor
    k: Tensor
    v: Tensor
    layout: BatchLayout
    options: dict[str, Any]

    def change(self, **changes: Any) -> "Call":
        return replace(self, **changes)

    def of(self, fn: Callable[[Tensor], Tensor]) -> "Call":
        """Change all three tensors."""
        return self.change(q=fn(self.q), k=fn(self.k), v=fn(self.v))


def _layout(place: int, sequences: int = 2, cp: int = 1, **options: Any) -> BatchLayout:
    return make_layout(
        [[ROWS], *[[8] * (ROWS // 8)] * (sequences - 1)],
        place,
        tokens=ROWS,
        heads=HeadSplit(query_heads=HEADS, kv_heads=HEADS, cp=cp),
        **options,
    )


def _strided(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


# What is wrong: how the call differs from a good one, and how the message begins.
BAD: dict[str, tuple[Callable[[Call], Call], str]] = {
    "q is flat": (
        lambda c: c.change(q=c.q.flatten(1)),
        r"q has shape \(96, 64\): must be \[96, 2,",
    ),
    "q is batched": (lambda c: c.change(q=c.q[None]), r"q has shape \(1, 96, 2, 32\): must be"),
    "q is short": (lambda c: c.change(q=c.q[:8]), r"q has shape \(8, 2, 32\): must be \[96, 2,"),
    "k is short": (lambda c: c.change(k=c.k[1:]), r"k has shape \(95, 2, 32\): must be \[96, 2,"),
    "v is short": (lambda c: c.change(v=c.v[:0]), r"v has shape \(0, 2, 32\): must be \[96, 2,"),
    "q lacks a head": (lambda c: c.change(q=c.q[:, :1]), r"q has shape \(96, 1, 32\): must be"),
    "k lacks a head": (lambda c: c.change(k=c.k[:, :1]), r"k has shape \(96, 1, 32\): must be"),
    "v lacks a head": (lambda c: c.change(v=c.v[:, :1]), r"v has shape \(96, 1, 32\): must be"),
    "k is narrow": (lambda c: c.change(k=c.k[..., :16]), r"k has shape \(96, 2, 16\): must be"),
    "v is narrow": (lambda c: c.change(v=c.v[..., :16]), r"v has shape \(96, 2, 16\): must be"),
    "no head_dim": (lambda c: c.of(lambda x: x[..., :0]), r"q has shape \(96, 2, 0\): must have"),
    "k is double": (lambda c: c.change(k=c.k.double()), r"k is torch.float64 on cpu: must be"),
    "v is half": (lambda c: c.change(v=c.v.half()), r"v is torch.float16 on cpu: must be"),
    "integers": (lambda c: c.of(Tensor.long), r"q is torch.int64: must be of floating point"),
    "complex": (
        lambda c: c.of(lambda x: x.to(torch.complex64)),
        r"q is torch.complex64: must be of floating",
    ),
    "k is elsewhere": (
        lambda c: c.change(k=c.k.to("meta")),
        r"k is torch.float32 on meta: must be",
    ),
    "v is elsewhere": (
        lambda c: c.change(v=c.v.to("meta")),
        r"v is torch.float32 on meta: must be",
    ),
    "q is strided": (lambda c: c.change(q=_strided(c.q)), r"q has strides \(64, 1, 2\): must be"),
    "v is strided": (lambda c: c.change(v=_strided(c.v)), r"v has strides \(64, 1, 2\): must be"),
    "other tokens": (
        lambda c: c.change(layout=make_layout([[9], [9]], 0, tokens=90, heads=c.layout.heads)),
        r"q has shape \(96, 2, 32\): must be \[90, 2, head_dim\] for a layout of 90 tokens",
    ),
    "other place": (
        lambda c: c.change(layout=_layout(1)),
        r"layout is for place 1, cp_rank 0 of 1: must be for place 0, cp_rank 0 of 1",
    ),
    "other cp_rank": (
        lambda c: c.change(layout=_layout(0, cp=2, cp_rank=1)),
        r"layout is for place 0, cp_rank 1 of 2: must be for place 0, cp_rank 0 of 1",
    ),
    "other mesh": (
        lambda c: c.change(layout=_layout(0, cp=2)),
        r"layout is for place 0, cp_rank 0 of 2: must be for place 0, cp_rank 0 of 1",
    ),
    "other pool": (
        lambda c: c.change(layout=_layout(0, sequences=3)),
        r"layout has 3 sequences: must be the pool's 2",
    ),
    "other policy": (
        lambda c: c.change(layout=_layout(0, step=5, policy_checksum="b")),
        r"layout has policy 'b': must be 'a', as the batches of step 5 before it",
    ),
    "a softcap": (
        lambda c: c.change(options={"softcap": 30.0}),
        r"kernel=sdpa-cpu has no softcap",
    ),
    "a window": (
        lambda c: c.change(options={"window": 8}),
        r"kernel=sdpa-cpu has no sliding window",
    ),
    "no softcap at all": (
        lambda c: c.change(options={"softcap": 0.0}),
        r"softcap=0.0: must be positive and finite",
    ),
    "no window at all": (
        lambda c: c.change(options={"window": 0}),
        r"window=0: must be at least 1",
    ),
}


@contextmanager
def _counting() -> Iterator[list[str]]:
    """Yield the names of the collectives that are begun, none of which is let through."""
    begun: list[str] = []

    def refuse(name: str) -> Callable[..., None]:
        def collective(*_: Any, **__: Any) -> None:
            begun.append(name)
            raise AssertionError(f"{name} was begun")

        return collective

    with ExitStack() as stack:
        for name in COLLECTIVES:
            stack.enter_context(mock.patch.object(dist, name, refuse(name)))
        yield begun


def _refusals(rank: int) -> tuple[dict[str, str], list[str], dict[str, float]]:
    """Return rank 0's messages, the collectives that were begun, and a good call's errors after."""
    pools = mesh_pools(MESH)
    kernel = SdpaCpuKernel()
    attention = PooledAttention(pools, kernel=kernel)
    first = _layout(pools.place, step=5, policy_checksum="a")
    attend(attention, small_case(first, pools, dtype=torch.float32))
    messages: dict[str, str] = {}
    begun: list[str] = []
    if rank == 0:
        q, k, v = (torch.zeros(ROWS, HEADS, HEAD_DIM) for _ in range(3))
        good = Call(q=q, k=k, v=v, layout=_layout(0, step=6), options={})
        with _counting() as begun:
            for name, (change, _) in BAD.items():
                messages[name] = _message(attention, change(good), kernel)
    small = small_case(small_layout(pools, step=7), pools)
    return messages, begun, small.errors(attend(attention, small))


def _message(attention: PooledAttention, call: Call, kernel: SdpaCpuKernel) -> str:
    own = attention
    if call.options:
        own = PooledAttention(attention.pools, kernel=kernel, **call.options)
    try:
        own(call.q, call.k, call.v, call.layout)
    except ValueError as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return ""


@pytest.fixture(scope="module")
def refusals(worker_ranks: Callable[[int], RankWorkers]) -> list[Any]:
    """What both ranks saw of all bad calls."""
    return worker_ranks(2).run(_refusals)


@pytest.mark.dist
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_value_error_that_names_it(refusals: list[Any], name: str) -> None:
    """The message begins with the tensor or the setting, and says what it must be."""
    message = refusals[0][0][name]

    assert re.match(BAD[name][1], message), message


@pytest.mark.dist
def test_nothing_is_sent_for_bad_input(refusals: list[Any]) -> None:
    """One rank refused thirty calls alone: none began a collective, and the next call is right."""
    for _, begun, errors in refusals:
        assert begun == []
        assert max(errors.values()) < 1e-13


@pytest.mark.dist
def test_the_collectives_that_a_call_begins_are_counted(
    worker_ranks: Callable[[int], RankWorkers],
) -> None:
    """A good call begins some: what counts them above would see them."""
    assert all(worker_ranks(2).run(_counted))


def _counted(rank: int) -> list[str]:
    pools = mesh_pools(MESH)
    attention = PooledAttention(pools)
    small = small_case(small_layout(pools, step=8), pools)
    with _counting() as begun, pytest.raises(Exception, match="was begun"):
        attend(attention, small)
    return begun


def _elastic_refusals(rank: int) -> tuple[list[str], list[str]]:
    """Return what is said of a size that there is not, and of another's place."""
    attention = PooledAttention(mesh_pools(ELASTIC))
    x = torch.zeros(ROWS, HEADS, HEAD_DIM)
    messages = []
    with _counting() as begun:
        for layout in (_layout(0, sequences=3), _layout(1 - rank)):
            with pytest.raises(ValueError, match="must be") as raised:
                attention(x, x, x, layout)
            messages.append(str(raised.value))
        with pytest.raises(ValueError, match="must be") as raised:
            attention.prepare(_layout(0, sequences=3))
        messages.append(str(raised.value))
    return messages, begun


@pytest.mark.dist
def test_a_layout_must_be_of_a_pool_that_this_rank_has(
    worker_ranks: Callable[[int], RankWorkers],
) -> None:
    """The message names the sizes there are; a place counts within the pool of the size."""
    size = "layout has 3 sequences: must be the pool's 1 or 2"
    for rank, (messages, begun) in enumerate(worker_ranks(2).run(_elastic_refusals)):
        place = f"layout is for place {1 - rank}, cp_rank 0 of 1: must be for place {rank}, "
        assert messages == [size, f"{place}cp_rank 0 of 1", size]
        assert begun == []
