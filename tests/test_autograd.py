"""Gradients of the operator in the ways that training asks for them.

Every case moves tiles, once without and once with a head split around it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from libra.attention.pooled import PooledAttention
from tests.attention_case import Mesh, mesh_pools
from tests.reference import dense_attention, relative_error
from tests.small_case import attend, same_bits, small_case, small_layout, start
from tests.workers import RankWorkers

Run = Callable[..., list[Any]]

pytestmark = pytest.mark.dist

# Sums of some hundred products of unit normals in float64.
EXACT = 1e-13
# Two layers, so sums of sums.
TWICE = 1e-12


@pytest.fixture(
    params=[Mesh(ranks=2, cp=1, pool=2), Mesh(ranks=4, cp=2, pool=2)], ids=["cp1", "cp2"]
)
def run(worker_ranks: Callable[[int], RankWorkers], request: pytest.FixtureRequest) -> Run:
    """Run a function of (rank, mesh, ...) on every rank of a mesh."""
    mesh: Mesh = request.param

    def run_on_mesh(fn: Callable[..., Any], *args: Any) -> list[Any]:
        return worker_ranks(mesh.ranks).run(fn, mesh, *args)

    return run_on_mesh


def _checkpoint(rank: int, mesh: Mesh, reentrant: bool) -> bool:
    attention, small = start(mesh)
    out: Tensor = checkpoint(attention, *small.qkv, small.layout, use_reentrant=reentrant)
    out.backward(small.own[3])
    got = (out, *(x.grad for x in small.qkv if x.grad is not None))
    return same_bits(got, attend(attention, small))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_recomputes_the_same_bits(run: Run, reentrant: bool) -> None:
    """Forward runs again in backward, on every rank alike, and gradients are what they were."""
    assert all(run(_checkpoint, reentrant))


def _some_gradients(rank: int, mesh: Mesh, wanted: list[int]) -> bool:
    attention, small = start(mesh)
    reference = attend(attention, small)
    inputs = [x.detach().requires_grad_(index in wanted) for index, x in enumerate(small.qkv)]
    attention(*inputs, small.layout).backward(small.own[3])
    grads = [x.grad for x in inputs]
    expected = [grad if index in wanted else None for index, grad in enumerate(reference[1:])]
    return all(
        own is other if own is None or other is None else torch.equal(own, other)
        for own, other in zip(grads, expected, strict=True)
    )


@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 2]])
def test_only_inputs_that_want_gradients_get_them(run: Run, wanted: list[int]) -> None:
    """Frozen queries, keys or values change nothing for the others."""
    assert all(run(_some_gradients, wanted))


def _accumulate(rank: int, mesh: Mesh, at_once: bool) -> dict[str, float]:
    pools = mesh_pools(mesh)
    attention = PooledAttention(pools)
    # The second micro-batch has other documents, and more of them.
    cells = [None, [[60, 20, 10], [5] * 15][: pools.size]]
    layouts = [small_layout(pools, cell, micro_batch=mb) for mb, cell in enumerate(cells)]
    assert all(layout.plan.moved for layout in layouts)
    batches = [small_case(layout, pools, seed=7) for layout in layouts]
    leaves = batches[0].qkv
    outs = []
    for batch in batches:
        outs.append(attention(*leaves, batch.layout))
        if not at_once:
            outs[-1].backward(batch.own[3])
    if at_once:
        for batch, out in reversed(list(zip(batches, outs, strict=True))):
            out.backward(batch.own[3])
    wanted = [sum(own) for own in zip(*(batch.reference()[1:] for batch in batches), strict=True)]
    grads = [x.grad for x in leaves if x.grad is not None]
    return {
        name: relative_error(grad, torch.as_tensor(own))
        for name, grad, own in zip(("dq", "dk", "dv"), grads, wanted, strict=True)
    }


@pytest.mark.parametrize("at_once", [False, True])
def test_gradients_of_micro_batches_add_up(run: Run, at_once: bool) -> None:
    """Batch by batch, and when both are in flight and come back in the opposite order."""
    for errors in run(_accumulate, at_once):
        assert max(errors.values()) < EXACT, errors


def _twice(rank: int, mesh: Mesh) -> dict[str, float]:
    attention, small = start(mesh)
    q, k, v = small.qkv
    first = attention(q, k, v, small.layout)
    out = attention(first, k, first + v, small.layout)
    got = (out, *torch.autograd.grad(out, (q, k, v), small.own[3]))
    exact = [x.double().requires_grad_() for x in small.whole[:3]]
    lengths = small.layout.document_lengths.tolist()
    inner = dense_attention(exact[0], exact[1], exact[2], lengths)
    outer = dense_attention(inner, exact[1], inner + exact[2], lengths)
    grads = torch.autograd.grad(outer, exact, small.whole[3].double())
    return {
        name: relative_error(x.detach(), wanted.detach()[small.layout.shard])
        for name, x, wanted in zip(("out", "dq", "dk", "dv"), got, (outer, *grads), strict=True)
    }


def test_one_operator_and_one_layout_serve_two_layers(run: Run) -> None:
    """Both layers' exchanges and kept tensors stay apart, forward and backward."""
    for errors in run(_twice):
        assert max(errors.values()) < TWICE, errors


def _backward_twice(rank: int, mesh: Mesh, resend: bool) -> bool:
    attention, small = start(mesh, resend_in_backward=resend)
    out = attention(*small.qkv, small.layout)
    first = torch.autograd.grad(out, small.qkv, small.own[3], retain_graph=True)
    second = torch.autograd.grad(out, small.qkv, small.own[3])
    return same_bits(first, second)


@pytest.mark.parametrize("resend", [False, True])
def test_backward_may_run_twice(run: Run, resend: bool) -> None:
    """``retain_graph`` keeps what was kept: no buffer of it has served another in between."""
    assert all(run(_backward_twice, resend))


def _strided(rank: int, mesh: Mesh) -> list[bool]:
    attention, small = start(mesh)
    q, k, v = small.qkv

    def backward(grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention(q, k, v, small.layout), (q, k, v), grad)

    expanded = torch.autograd.grad(attention(q, k, v, small.layout).sum(), (q, k, v))
    transposed = small.own[3].transpose(0, 1).contiguous().transpose(0, 1)
    fused = torch.cat((q, k, v), dim=1).detach().requires_grad_()
    parts = (fused[:, :2], fused[:, 2:4], fused[:, 4:])
    (grad,) = torch.autograd.grad(attention(*parts, small.layout), fused, small.own[3])
    return [
        same_bits(expanded, backward(torch.ones_like(small.own[3]))),
        same_bits(backward(transposed), backward(small.own[3])),
        same_bits((grad[:, :2], grad[:, 2:4], grad[:, 4:]), backward(small.own[3])),
    ]


def test_strides_do_not_matter(run: Run) -> None:
    """Gradients expanded by ``sum``, transposed ones, and inputs cut out of one tensor."""
    assert all(all(own) for own in run(_strided))


def _double_backward(rank: int, mesh: Mesh) -> str:
    attention, small = start(mesh)
    out = attention(*small.qkv, small.layout)
    (dq,) = torch.autograd.grad(out.square().sum(), small.qkv[:1], create_graph=True)
    with pytest.raises(RuntimeError) as raised:
        dq.sum().backward()
    return str(raised.value)


def test_double_backward_is_refused(run: Run) -> None:
    """A gradient of a gradient is an error on every rank, not a wrong number."""
    assert all("once_differentiable" in message for message in run(_double_backward))
