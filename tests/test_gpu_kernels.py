"""Each CUDA kernel that is installed computes what the math kernel computes on the same GPU.

Start here on a machine with a GPU: a kernel that is not there is skipped with its reason.
"""

import pytest
import torch

from libra.attention.dense import MathKernel
from libra.attention.flash import FlashAttention2Kernel, FlashAttention4Kernel
from libra.attention.kernel import AttentionSpec, TileKernel
from libra.attention.varlen import TorchVarlenKernel
from tests.kernel_cases import NAMES, TOLERANCE, call, errors, make_case, worst
from tests.reference import relative_error

pytestmark = [
    pytest.mark.gpu,
    # flash-attn-4 compiles a kernel for each new shape.
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SIZES = [(300, 300), (129, 700), (1, 513), (1, 1), (64, 64)]
SPECS = [
    AttentionSpec(scale=0.125),
    AttentionSpec(scale=0.125, window=100),
    AttentionSpec(scale=0.3, softcap=5.0),
    AttentionSpec(scale=0.3, softcap=5.0, window=100),
]


@pytest.fixture(params=[FlashAttention4Kernel, FlashAttention2Kernel, TorchVarlenKernel])
def kernel(request: pytest.FixtureRequest) -> TileKernel:
    made: TileKernel = request.param()
    return made


def _skip_refused(
    kernel: TileKernel, spec: AttentionSpec, dtype: torch.dtype, head_dim: int
) -> None:
    reason = kernel.refusal(spec, device=torch.device("cuda"), dtype=dtype, head_dim=head_dim)
    if reason is not None:
        pytest.skip(f"{kernel.name} {reason}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_math_kernel_on_a_gpu(dtype: torch.dtype) -> None:
    """The math kernel gives the CPU's float64 reference on a GPU."""
    found = errors(MathKernel(), make_case([(129, 700)], dtype=dtype, device="cuda"), SPECS[3])

    assert worst(found) < TOLERANCE[dtype], found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_packed_segments(
    kernel: TileKernel, dtype: torch.dtype, heads: tuple[int, int], head_dim: int
) -> None:
    """Whole and cut documents, and rows that read one key, in one call."""
    spec = AttentionSpec(scale=head_dim**-0.5)
    _skip_refused(kernel, spec, dtype, head_dim)
    case = make_case(SIZES, heads=heads, head_dim=head_dim, dtype=dtype, device="cuda")
    found = errors(kernel, case, spec)

    assert worst(found) < TOLERANCE[dtype], found


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("views", [False, True])
def test_specs_and_views(kernel: TileKernel, spec: AttentionSpec, views: bool) -> None:
    """Softcap and window mean the same as in the math kernel, on slices of wider tensors too."""
    _skip_refused(kernel, spec, torch.bfloat16, 64)
    case = make_case(SIZES[1:2], dtype=torch.bfloat16, device="cuda", views=views)
    found = call(kernel, case, spec, views=views)
    wanted = call(MathKernel(), case, spec)

    for name, value, reference in zip(NAMES, found, wanted, strict=True):
        assert relative_error(value, reference.double()) < TOLERANCE[torch.bfloat16], name


@pytest.mark.parametrize("rows", [1, 2])
def test_single_rows(kernel: TileKernel, rows: int) -> None:
    """Segments of one query each, for which kernels have paths of their own, agree."""
    _skip_refused(kernel, SPECS[0], torch.bfloat16, 64)
    case = make_case([(rows, 40), (rows, 700)], dtype=torch.bfloat16, device="cuda")
    found = errors(kernel, case, SPECS[0])

    assert worst(found) < TOLERANCE[torch.bfloat16], found


def test_backward_repeats_itself_on_demand(
    kernel: TileKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With deterministic algorithms on, two backward passes agree bit for bit."""
    _skip_refused(kernel, SPECS[0], torch.bfloat16, 64)
    # Read where cuBLAS starts; the math kernel is not part of this test.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    case = make_case([(2000, 4000)], dtype=torch.bfloat16, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (call(kernel, case, SPECS[0]) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)

    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
