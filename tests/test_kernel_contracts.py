"""Which kernel is chosen, and what each refuses and why.

Start here when a kernel is added or learns something new.
"""

import logging
import math
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch

from libra.attention import kernel as kernel_module
from libra.attention.dense import MathKernel
from libra.attention.flash import FlashAttention2Kernel, FlashAttention4Kernel
from libra.attention.guards import parameters_refusal
from libra.attention.kernel import AttentionSpec, TileKernel, choose_kernel
from libra.attention.sdpa import SdpaCpuKernel
from libra.attention.segments import Segments
from libra.attention.varlen import TorchVarlenKernel
from tests.flash_standins import install_flash2, install_flash4

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PLAIN = AttentionSpec(scale=0.125)
CAPPED = AttentionSpec(scale=0.125, softcap=30.0)
WINDOW = AttentionSpec(scale=0.125, window=128)
HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _forget_kernels() -> Iterator[None]:
    """Let no test see kernels or messages of another."""
    for kept in (kernel_module._by_preference, kernel_module._announce):
        kept.cache_clear()
    yield
    for kept in (kernel_module._by_preference, kernel_module._announce):
        kept.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pretend a Hopper GPU with a torch built for it, and no flash-attn."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    for name in (FlashAttention2Kernel.module, FlashAttention4Kernel.module):
        monkeypatch.setitem(sys.modules, name, None)
    return monkeypatch


def _why(
    kernel: TileKernel,
    spec: AttentionSpec = PLAIN,
    device: torch.device = CUDA,
    dtype: torch.dtype = HALF,
    head_dim: int = 64,
) -> str | None:
    return kernel.refusal(spec, device=device, dtype=dtype, head_dim=head_dim)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": math.nan}, "scale=nan: must be finite"),
        ({"scale": 1.0, "softcap": 0.0}, "softcap=0.0: must be positive and finite, or None"),
        ({"scale": 1.0, "softcap": math.inf}, "softcap=inf: must be positive and finite, or None"),
        ({"scale": 1.0, "window": 0}, "window=0: must be at least 1, or None"),
    ],
)
def test_spec_refuses_what_no_kernel_could_do(given: dict[str, float], message: str) -> None:
    """A scale, softcap or window that makes no sense is named in the error."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        AttentionSpec(**given)  # type: ignore[arg-type]


def test_sdpa_says_what_it_cannot_do() -> None:
    """Torch's CPU kernel takes any head dim and four dtypes, without softcap or window."""
    kernel = SdpaCpuKernel()

    for dtype in (torch.float64, SINGLE, HALF, torch.float16):
        assert _why(kernel, device=CPU, dtype=dtype, head_dim=80) is None
    assert _why(kernel) == "runs on cpu, not on cuda"
    assert _why(kernel, device=CPU, dtype=torch.int32) == "takes floating point numbers, not int32"
    assert _why(kernel, CAPPED, device=CPU) == "has no softcap"
    assert _why(kernel, WINDOW, device=CPU) == "has no sliding window"


def test_math_takes_whatever_has_a_softmax() -> None:
    """The math kernel refuses nothing but tensors that are not floating point."""
    kernel = MathKernel()

    for device in (CPU, CUDA):
        for spec in (PLAIN, CAPPED, WINDOW):
            assert _why(kernel, spec, device=device, dtype=SINGLE, head_dim=7) is None
    assert _why(kernel, dtype=torch.int64) == "takes floating point numbers, not int64"
    assert _why(kernel, head_dim=0) == "takes head_dim from 1, not 0"


def test_flash_kernels_say_what_they_cannot_do(gpu: pytest.MonkeyPatch) -> None:
    """Each CUDA kernel names the device, dtype or head dim that it does not take."""
    install_flash2(gpu)
    install_flash4(gpu)
    for kernel, widest in (
        (FlashAttention4Kernel(), 128),
        (FlashAttention2Kernel(), 256),
        (TorchVarlenKernel(), 256),
    ):
        odd = f"takes head_dim in multiples of 8 up to {widest}, not "
        assert _why(kernel) is None
        assert _why(kernel, WINDOW) is None
        assert _why(kernel, device=CPU) == "runs on cuda, not on cpu"
        assert _why(kernel, dtype=SINGLE) == "takes bfloat16 and float16, not float32"
        assert _why(kernel, head_dim=60) == odd + "60"
        assert _why(kernel, head_dim=264) == odd + "264"
    assert _why(TorchVarlenKernel(), CAPPED) == "has no softcap"


def test_flash_kernels_know_their_gpus(gpu: pytest.MonkeyPatch) -> None:
    """A GPU that a kernel is not written for is named."""
    install_flash2(gpu)
    install_flash4(gpu)
    gpu.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))

    assert _why(FlashAttention4Kernel()) == "is written for compute capability 9.x to 11.x, not 7.x"
    assert _why(FlashAttention2Kernel()) == "is written for compute capability 8.x to 12.x, not 7.x"
    assert _why(TorchVarlenKernel()) == "needs compute capability 8.0 or newer"


def test_torch_without_flash_attention_is_refused(gpu: pytest.MonkeyPatch) -> None:
    """A torch that was built without flash attention is said to be so."""
    gpu.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)

    assert _why(TorchVarlenKernel()) == "this build of torch has no flash attention"


@pytest.mark.parametrize("kind", [FlashAttention2Kernel, FlashAttention4Kernel])
def test_flash_attn_that_does_not_import_is_a_reason(
    kind: type[FlashAttention2Kernel | FlashAttention4Kernel], gpu: pytest.MonkeyPatch
) -> None:
    """A flash-attn that is missing or broken is refused with the import's own words."""
    reason = _why(kind())

    assert reason is not None
    assert reason.startswith("cannot be imported: ")
    assert kind.module in reason


@pytest.mark.parametrize("kind", [FlashAttention2Kernel, FlashAttention4Kernel])
def test_flash_attn_of_another_version_is_a_reason(
    kind: type[FlashAttention2Kernel | FlashAttention4Kernel], gpu: pytest.MonkeyPatch
) -> None:
    """Functions that are gone or take other arguments are refused before any call."""
    module = ModuleType(kind.module)
    gpu.setitem(sys.modules, kind.module, module)
    assert kind.functions[0] in str(_why(kind()))

    def older(q: object, k: object, v: object, window_size: object) -> None: ...

    vars(module).update(dict.fromkeys(kind.functions, older))
    assert "older of the installed version lacks causal, " in str(_why(kind()))


def test_parameters_of_functions_and_torch_ops_are_read() -> None:
    """Missing arguments are found in Python functions and in ops, and listed by name."""
    op = torch.ops.aten._flash_attention_forward

    assert parameters_refusal(op, ("cum_seq_q", "window_size_left")) is None
    assert str(parameters_refusal(op, ("softcap", "sinks"))).endswith("lacks sinks, softcap")


@pytest.mark.parametrize("kernel", [SdpaCpuKernel(), MathKernel()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "message"),
    [
        (0, 4, 2, r"q=\[0, 2, 64\]: must not be empty"),
        (4, 0, 2, r"k=\[0, 2, 64\]: must not be empty"),
        (4, 4, 0, r"q=\[4, 0, 64\]: must not be empty"),
        (4, 5, 2, r"k=\[5, 2, 64\]: must have the segments' 4 rows"),
    ],
)
def test_empty_tensors_are_an_error_not_a_crash(
    kernel: TileKernel, queries: int, keys: int, heads: int, message: str
) -> None:
    """What would end the process inside the CPU's flash kernel raises, in both directions."""
    q, k = torch.ones(queries, heads, 64), torch.ones(keys, heads, 64)
    segments = Segments(
        query_tokens=np.array([queries]), key_tokens=np.array([min(keys, 4) if keys else 0])
    )
    lse = torch.ones(heads, queries)

    with pytest.raises(ValueError, match=message):
        kernel.forward(q, k, k, segments, PLAIN, q, lse)
    with pytest.raises(ValueError, match=message):
        kernel.backward(q, q, k, k, q, lse, segments, PLAIN, (q, k, k))


@pytest.mark.parametrize("kernel", [SdpaCpuKernel(), MathKernel()], ids=lambda kernel: kernel.name)
def test_unpacked_kernels_take_one_segment(kernel: TileKernel) -> None:
    """Two segments in one call of a kernel that is not packed are an error."""
    q = torch.ones(4, 2, 64)
    segments = Segments(query_tokens=np.array([2, 2]), key_tokens=np.array([2, 2]))

    assert not kernel.packed
    with pytest.raises(ValueError, match="segments=2: must be one a call"):
        kernel.forward(q, q, q, segments, PLAIN, q, torch.ones(2, 4))


def test_choice_on_a_cpu() -> None:
    """A CPU has torch's flash kernel, and the math kernel for what that refuses."""
    assert choose_kernel(CPU, SINGLE, 64, PLAIN).name == "sdpa-cpu"
    assert choose_kernel(CPU, SINGLE, 64, CAPPED).name == "math"
    assert choose_kernel(CPU, SINGLE, 64, WINDOW).name == "math"


def test_choice_on_a_gpu(gpu: pytest.MonkeyPatch) -> None:
    """The newest flash-attn that is there goes first, then torch's own, then plain torch."""
    assert choose_kernel(CUDA, HALF, 64, PLAIN).name == "torch-varlen"
    assert choose_kernel(CUDA, HALF, 64, CAPPED).name == "math"
    assert choose_kernel(CUDA, SINGLE, 64, PLAIN).name == "math"
    install_flash2(gpu)
    kernel_module._by_preference.cache_clear()
    assert choose_kernel(CUDA, HALF, 64, CAPPED).name == "flash-attn-2"
    install_flash4(gpu)
    kernel_module._by_preference.cache_clear()
    assert choose_kernel(CUDA, HALF, 64, PLAIN).name == "flash-attn-4"
    assert choose_kernel(CUDA, HALF, 256, PLAIN).name == "flash-attn-2"
    gpu.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    assert choose_kernel(CUDA, HALF, 64, PLAIN).name == "flash-attn-2"


def test_choice_is_logged_once_with_its_reasons(caplog: pytest.LogCaptureFixture) -> None:
    """The log says which kernel and what those before it lacked; it warns of the slow one."""
    with caplog.at_level(logging.INFO, "libra.attention.kernel"):
        for spec in (PLAIN, CAPPED, PLAIN, CAPPED):
            choose_kernel(CPU, SINGLE, 64, spec)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "attention kernel for float32 with head_dim 64 on cpu: sdpa-cpu"),
        (
            "WARNING",
            "attention kernel for float32 with head_dim 64 on cpu: math, which is slow"
            " (sdpa-cpu has no softcap)",
        ),
    ]


def test_no_kernel_is_an_error_with_every_reason(gpu: pytest.MonkeyPatch) -> None:
    """Where none can do it, the error lists what each kernel said."""
    with pytest.raises(ValueError, match=r"^dtype=torch\.int32: no attention kernel does") as error:
        choose_kernel(CUDA, torch.int32, 64, PLAIN)

    for name in ("flash-attn-4", "flash-attn-2", "torch-varlen"):
        assert f"{name} takes bfloat16 and float16, not int32" in str(error.value)
    assert "math takes floating point numbers, not int32" in str(error.value)
