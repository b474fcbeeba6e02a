"""The CUDA kernels are asked the right thing: shown on a CPU by stand-ins that check and compute.

Start here when a library changes its functions; the real kernels are run by test_gpu_kernels.py.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from libra.attention import offsets
from libra.attention.flash import FlashAttention2Kernel, FlashAttention4Kernel
from libra.attention.kernel import AttentionSpec, TileKernel
from libra.attention.offsets import device_offsets
from libra.attention.segments import Segments
from libra.attention.varlen import TorchVarlenKernel
from tests.flash_standins import install_flash2, install_flash4
from tests.kernel_cases import TOLERANCE, call, errors, make_case, worst
from tests.torch_standin import TorchOps
from tests.varlen_recorder import Recorder

Made = tuple[TileKernel, Recorder]
SIZES = [(70, 70), (9, 41), (1, 30), (1, 1)]
PLAIN = AttentionSpec(scale=0.125)
WINDOW = AttentionSpec(scale=0.125, window=7)
CAPPED = AttentionSpec(scale=0.3, softcap=2.0)


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Compute on one thread: cases are small, and threads that wait for a busy core take long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _torch_varlen(monkeypatch: pytest.MonkeyPatch) -> Made:
    ops = TorchOps()
    return TorchVarlenKernel(ops.aten_forward, ops.aten_backward), ops


def _flash2(monkeypatch: pytest.MonkeyPatch) -> Made:
    recorder = install_flash2(monkeypatch)
    return FlashAttention2Kernel(), recorder


def _flash4(monkeypatch: pytest.MonkeyPatch) -> Made:
    recorder = install_flash4(monkeypatch)
    return FlashAttention4Kernel(), recorder


@pytest.fixture(params=[_torch_varlen, _flash2, _flash4], ids=["torch", "flash-2", "flash-4"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Made:
    make: Callable[[pytest.MonkeyPatch], Made] = request.param
    return make(monkeypatch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("views", [False, True])
def test_one_call_takes_many_segments(
    made: Made, dtype: torch.dtype, heads: tuple[int, int], views: bool
) -> None:
    """Whole and cut documents in one call give the reference's output and gradients."""
    kernel, recorder = made
    case = make_case(SIZES, heads=heads, dtype=dtype, views=views)
    found = errors(kernel, case, PLAIN, views=views)

    assert worst(found) < TOLERANCE[dtype], found
    assert len(recorder.calls) == 2


def test_window_counts_the_query_s_own_key(made: Made) -> None:
    """A window of seven keys is six to the left, in forward and backward."""
    kernel, recorder = made
    found = errors(kernel, make_case(SIZES, dtype=torch.bfloat16), WINDOW)

    assert worst(found) < TOLERANCE[torch.bfloat16], found
    assert [(asked["left"], asked["right"]) for asked in recorder.calls] == [(6, 0), (6, 0)]


@pytest.mark.parametrize("make", [_flash2, _flash4])
def test_softcap_reaches_flash_attn(
    make: Callable[[pytest.MonkeyPatch], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both flash-attns cap scores, in forward and backward."""
    kernel, _ = make(monkeypatch)
    found = errors(kernel, make_case(SIZES, dtype=torch.bfloat16), CAPPED)

    assert worst(found) < TOLERANCE[torch.bfloat16], found


@pytest.mark.parametrize("make", [_flash2, _flash4])
@pytest.mark.parametrize("wanted", [False, True])
def test_backward_is_deterministic_on_demand(
    make: Callable[[pytest.MonkeyPatch], Made], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's switch for deterministic algorithms reaches flash-attn's backward."""
    kernel, recorder = make(monkeypatch)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: wanted)
    call(kernel, make_case([(9, 41)], dtype=torch.bfloat16), PLAIN)

    assert recorder.calls[-1]["deterministic"] is wanted


def test_flash_attn_4_writes_in_place_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contiguous results are given to the kernel; views of wider tensors are copied to."""
    kernel, recorder = _flash4(monkeypatch)
    case = make_case([(9, 41)], dtype=torch.bfloat16)
    call(kernel, case, PLAIN)
    call(kernel, case, PLAIN, views=True)
    given = [[place is not None for place in asked["given"]] for asked in recorder.calls]

    assert given == [[True] * 2, [True] * 3, [False] * 2, [False] * 3]


def test_forward_and_backward_share_their_offsets(made: Made) -> None:
    """Two calls for the same segments get the very same offset tensors."""
    kernel, recorder = made
    call(kernel, make_case(SIZES, dtype=torch.bfloat16), PLAIN)
    forward, backward = recorder.calls

    assert forward["cu_q"] is backward["cu_q"]
    assert forward["cu_k"] is backward["cu_k"]


def test_offsets_are_forgotten_with_the_segments() -> None:
    """Offsets are kept as long as their segments live, and never taken for another's."""
    before = len(offsets._kept)
    for keys in (5, 6, 7):
        segments = Segments(query_tokens=np.array([3]), key_tokens=np.array([keys]))
        found = device_offsets(segments, torch.device("cpu"))
        assert found.keys.tolist() == [0, keys]
        assert found is device_offsets(segments, torch.device("cpu"))
        assert len(offsets._kept) == before + 1
        del segments
        gc.collect()
        assert len(offsets._kept) == before


def test_padded_log_sum_exp_is_refused() -> None:
    """A torch that pads the log-sum-exp per segment is an error, not a wrong gradient."""

    class Padding(TorchOps):
        def forward(self, *args: Tensor, **asked: Any) -> tuple[Tensor, Tensor]:
            out, lse = super().forward(*args, **asked)
            return out, lse[None]

    ops = Padding()
    kernel = TorchVarlenKernel(ops.aten_forward, ops.aten_backward)

    with pytest.raises(RuntimeError, match="this torch pads it"):
        call(kernel, make_case([(9, 41)], dtype=torch.bfloat16), PLAIN)


def test_installed_torch_takes_what_is_passed() -> None:
    """The ops of the installed torch have every argument that the adapter passes, in order."""
    forward, backward = (
        [argument.name for argument in op.default._schema.arguments]
        for op in (
            torch.ops.aten._flash_attention_forward,
            torch.ops.aten._flash_attention_backward,
        )
    )
    lead = ["cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]

    assert forward[:10] == ["query", "key", "value", *lead, "return_debug_mask"]
    assert backward[:6] == ["grad_out", "query", "key", "value", "out", "logsumexp"]
    assert backward[6:12] == lead
    assert {"scale", "window_size_left", "window_size_right"} <= {*forward} & {*backward}


def test_installed_torch_binds_the_call() -> None:
    """On tensors without data the real ops take the adapter's call and return its shapes."""
    case = make_case(SIZES, dtype=torch.bfloat16, device="meta")
    out, logsumexp, *grads = call(TorchVarlenKernel(), case, WINDOW)

    assert logsumexp.shape == (case.q.shape[1], case.q.shape[0])
    assert [x.shape for x in (out, *grads)] == [x.shape for x in (case.q, case.q, case.k, case.v)]
