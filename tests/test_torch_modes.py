"""The operator in torch's modes: inference, compilation, autocast, determinism, less memory.

Every case moves tiles, once without and once with a head split around it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from libra.attention.dense import MathKernel
from libra.attention.layout import BatchLayout
from libra.attention.pooled import PooledAttention
from tests.attention_case import Mesh
from tests.reference import relative_error
from tests.small_case import HEAD_DIM, attend, same_bits, start
from tests.workers import RankWorkers

Run = Callable[..., list[Any]]

pytestmark = pytest.mark.dist

# Sums of some hundred products of unit normals in float64.
EXACT = 1e-13
# Inputs, results and weights are each rounded to 8 bits.
BFLOAT16 = 4e-2


@pytest.fixture(
    params=[Mesh(ranks=2, cp=1, pool=2), Mesh(ranks=4, cp=2, pool=2)], ids=["cp1", "cp2"]
)
def run(worker_ranks: Callable[[int], RankWorkers], request: pytest.FixtureRequest) -> Run:
    """Run a function of (rank, mesh, ...) on every rank of a mesh."""
    mesh: Mesh = request.param

    def run_on_mesh(fn: Callable[..., Any], *args: Any) -> list[Any]:
        return worker_ranks(mesh.ranks).run(fn, mesh, *args)

    return run_on_mesh


def _without_gradient(rank: int, mesh: Mesh) -> tuple[bool, bool, dict[str, float]]:
    attention, small = start(mesh)
    # First, so that the buffers which it leaves behind serve training after.
    with torch.inference_mode():
        inference = attention(*small.qkv, small.layout)
    with torch.no_grad():
        no_grad = attention(*small.qkv, small.layout)
    got = attend(attention, small)
    equal = same_bits((no_grad, inference), (got[0], got[0]))
    return equal, no_grad.requires_grad, small.errors(got)


def test_attention_without_gradients(run: Run) -> None:
    """``no_grad`` and ``inference_mode`` give the same output, and training goes on after."""
    for equal, requires_grad, errors in run(_without_gradient):
        assert equal
        assert not requires_grad
        assert max(errors.values()) < EXACT


class _Model(nn.Module):
    """One layer: projections around the operator."""

    def __init__(self, attention: PooledAttention) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = attention
        self.project = nn.Linear(16, 6 * HEAD_DIM, dtype=torch.float64)
        self.back = nn.Linear(2 * HEAD_DIM, 16, dtype=torch.float64)

    def forward(self, x: Tensor, layout: BatchLayout) -> Tensor:
        q, k, v = self.project(x).relu().view(len(x), 6, HEAD_DIM).split(2, dim=1)
        y: Tensor = self.back(self.attention(q, k, v, layout).flatten(1))
        return y


def _compiled(rank: int, mesh: Mesh, backend: str) -> tuple[float, bool]:
    attention, small = start(mesh)
    model = _Model(attention)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(small.own[0].shape[0], 16, dtype=torch.float64)
    found = []
    for call in (model, compiled, compiled):
        model.zero_grad()
        y = call(x, small.layout)
        y.square().sum().backward()
        found.append((y.detach(), *(own.grad.clone() for own in model.parameters())))  # type: ignore[union-attr]
    errors = [relative_error(*pair) for pair in zip(found[1], found[0], strict=True)]
    return max(errors), same_bits(found[1], found[2])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_may_call_it(run: Run, backend: str) -> None:
    """The graph breaks around the operator, and the model computes what it did."""
    for error, repeats in run(_compiled, backend):
        assert error < EXACT
        assert repeats


def _autocast(rank: int, mesh: Mesh, explicit: bool) -> tuple[dict[str, float], set[torch.dtype]]:
    """Attend under autocast, by torch's kernel or by the one of plain matrix products."""
    kernel = MathKernel() if explicit else None
    attention, small = start(mesh, dtype=torch.bfloat16, kernel=kernel)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attend(attention, small)
    return small.errors(got), {x.dtype for x in got}


@pytest.mark.parametrize("explicit", [False, True])
def test_autocast_changes_nothing_inside(run: Run, explicit: bool) -> None:
    """bfloat16 goes in and comes out, and is no less precise than without autocast."""
    for errors, dtypes in run(_autocast, explicit):
        assert max(errors.values()) < BFLOAT16, errors
        assert dtypes == {torch.bfloat16}


def _autocast_float32(rank: int, mesh: Mesh) -> bool:
    attention, small = start(mesh, dtype=torch.float32, kernel=MathKernel())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = attend(attention, small)
    return same_bits(inside, attend(attention, small))


def test_float32_stays_float32_under_autocast(run: Run) -> None:
    """The operator computes in the precision of its inputs: autocast casts nothing of it."""
    assert all(run(_autocast_float32))


def _deterministic(rank: int, mesh: Mesh) -> bool:
    # Also fills memory that nobody initialised with NaN.
    torch.use_deterministic_algorithms(True)
    try:
        runs = [attend(*start(mesh, dtype=torch.float32)) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    return all(same_bits(own, runs[0]) for own in runs[1:])


def test_two_runs_give_the_same_bits(run: Run) -> None:
    """Output and gradients, with torch's deterministic algorithms asked for."""
    assert all(run(_deterministic))


def _kept(rank: int, mesh: Mesh, resend: bool) -> tuple[tuple[Tensor, ...], int]:
    """Return out, dq, dk, dv and the bytes kept between forward and backward."""
    attention, small = start(mesh, resend_in_backward=resend)
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = attention(*small.qkv, small.layout)
    grads = torch.autograd.grad(out, small.qkv, small.own[3])
    return tuple(x.detach() for x in (out, *grads)), sum(storages.values())


def test_resending_gives_the_same_bits_and_keeps_less(run: Run) -> None:
    """Ranks that receive keep fewer bytes for backward; the others as many as before."""
    keeping, resending = run(_kept, False), run(_kept, True)

    for (kept, _), (resent, _) in zip(keeping, resending, strict=True):
        assert same_bits(kept, resent)
    saved = [own - other for (_, own), (_, other) in zip(keeping, resending, strict=True)]
    assert min(saved) >= 0
    # At least one long document's share of queries, keys and values in float64.
    assert max(saved) > 48 * HEAD_DIM * 8
