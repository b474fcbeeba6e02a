"""Every CPU kernel computes the softmax it promises: output and each gradient apart.

Start here when touching a kernel: a failure names the kernel, the case and the tensor.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from libra.attention.dense import MathKernel
from libra.attention.kernel import AttentionSpec, TileKernel
from libra.attention.sdpa import SdpaCpuKernel
from tests.kernel_cases import TOLERANCE, Case, call, errors, expect, make_case, worst
from tests.reference import relative_error

# Few rows a block, so that blocks meet within a small case.
KERNELS: list[TileKernel] = [SdpaCpuKernel(), MathKernel(block_rows=16)]
WHOLE, CUT, ONE_ROW, ONE_KEY = (70, 70), (33, 120), (1, 90), (1, 1)


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Compute on one thread: cases are small, and threads that wait for a busy core take long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request: pytest.FixtureRequest) -> TileKernel:
    found: TileKernel = request.param
    return found


def _check(kernel: TileKernel, case: Case, spec: AttentionSpec, *, views: bool = False) -> None:
    found = errors(kernel, case, spec, views=views)
    assert worst(found) < TOLERANCE[case.q.dtype], found


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [WHOLE, CUT, ONE_ROW, ONE_KEY], ids=str)
def test_every_dtype(kernel: TileKernel, dtype: torch.dtype, size: tuple[int, int]) -> None:
    """Whole documents, cut ones and rows that read one key agree in every dtype."""
    _check(kernel, make_case([size], dtype=dtype), AttentionSpec(scale=0.125))


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (8, 1), (16, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_every_head_shape(kernel: TileKernel, heads: tuple[int, int], head_dim: int) -> None:
    """Groups of one, four and eight heads and a single kv head agree at each head dim."""
    case = make_case([CUT], heads=heads, head_dim=head_dim)

    _check(kernel, case, AttentionSpec(scale=head_dim**-0.5))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [WHOLE, CUT], ids=str)
def test_views_of_rows_and_heads(
    kernel: TileKernel, dtype: torch.dtype, size: tuple[int, int]
) -> None:
    """Inputs and results may be slices of wider tensors; nothing beside them is written."""
    case = make_case([size], dtype=dtype, views=True)

    _check(kernel, case, AttentionSpec(scale=0.125), views=True)


def test_nothing_beside_a_view_is_written(kernel: TileKernel) -> None:
    """What lies around the rows and heads of the results keeps its value."""
    case = make_case([CUT])
    results = call(kernel, case, AttentionSpec(scale=0.125), views=True)

    for result in results:
        base = result._base
        assert base is not None
        assert int(base.isnan().sum()) == base.numel() - result.numel()


def test_scale_is_the_spec_s(kernel: TileKernel) -> None:
    """The scale is taken from the spec, not from the head dim."""
    _check(kernel, make_case([CUT]), AttentionSpec(scale=0.4))


def test_gradients_are_the_shares_of_the_keys(kernel: TileKernel) -> None:
    """With an output and log-sum-exp over more keys, a call gives just its keys' gradients."""
    case, spec = make_case([(20, 64)], dtype=torch.float64), AttentionSpec(scale=0.125)
    out, logsumexp, dq, dk, dv = expect(case, spec)
    # The same rows with their nearest 20 keys only: the causal block of the cut.
    near = Case(q=case.q, k=case.k[44:], v=case.v[44:], grad_out=case.grad_out, sizes=[(20, 20)])
    grads = tuple(torch.empty_like(x) for x in (near.q, near.k, near.v))
    kernel.backward(
        near.grad_out,
        near.q,
        near.k,
        near.v,
        out,
        logsumexp,
        near.segments,
        spec,
        (grads[0], grads[1], grads[2]),
    )

    assert relative_error(grads[1], dk[44:]) < 1e-14
    assert relative_error(grads[2], dv[44:]) < 1e-14
    assert relative_error(grads[0], dq) > 0.1


@pytest.mark.parametrize("size", [WHOLE, CUT, ONE_ROW], ids=str)
@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(scale=0.3, softcap=2.0),
        AttentionSpec(scale=0.125, window=1),
        AttentionSpec(scale=0.125, window=19),
        AttentionSpec(scale=0.125, window=500),
        AttentionSpec(scale=0.3, softcap=2.0, window=19),
    ],
    ids=lambda spec: f"softcap={spec.softcap},window={spec.window}",
)
def test_softcap_and_window(spec: AttentionSpec, size: tuple[int, int]) -> None:
    """The math kernel caps scores and hides keys that lie a window or more behind."""
    case = make_case([size], dtype=torch.float64)

    _check(MathKernel(block_rows=16), case, spec)


def test_blocks_of_the_math_kernel_do_not_show() -> None:
    """How many rows go at a time changes the result by rounding only."""
    case, spec = make_case([CUT], dtype=torch.float64), AttentionSpec(scale=0.125)
    whole, single = (call(MathKernel(block_rows=rows), case, spec) for rows in (512, 1))

    assert all(relative_error(a, b) < 1e-14 for a, b in zip(single, whole, strict=True))


def test_math_kernel_ignores_autocast() -> None:
    """Inside an autocast region it computes in the precision of its inputs."""
    case = make_case([CUT])

    with torch.autocast("cpu", dtype=torch.bfloat16):
        _check(MathKernel(), case, AttentionSpec(scale=0.125))


def test_half_precision_is_rounded_once_by_the_merge() -> None:
    """Blocks of a cut are merged in float32: the error is half a unit in the last place."""
    case, spec = make_case([CUT], dtype=torch.bfloat16), AttentionSpec(scale=0.125)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    heads_first = [x.transpose(0, 1)[None] for x in (case.q, case.k, case.v)]
    q, k, v = heads_first
    begin = CUT[1] - CUT[0]
    blocks: list[tuple[Tensor, Tensor]] = [
        flash(q, k[:, :, keys], v[:, :, keys], 0.0, causal, scale=spec.scale)
        for keys, causal in ((slice(0, begin), False), (slice(begin, None), True))
    ]
    weights = torch.stack([lse for _, lse in blocks]).double().softmax(dim=0).unsqueeze(-1)
    merged = (weights * torch.stack([out for out, _ in blocks]).double()).sum(dim=0)
    exact = merged[0].transpose(0, 1)
    out = call(SdpaCpuKernel(), case, spec)[0]
    unit = 2.0 ** (exact.abs().log2().floor() - 7)

    assert float(((out.double() - exact).abs() / unit).max()) < 0.51
