"""Makes MagiAttention's runtime run on gloo and a CPU, in a process that does nothing else.

Its plan, its dispatch, its group collectives and its own dense attention backend run as they are.
What needs a GPU is replaced here: streams and events do nothing, and three Triton kernels are a
few lines of PyTorch. Written for its commit 2c64135 (May 2026).

Shapes: rows are tokens; ranges are [n, 2] begins and ends of rows; logsumexp is [rows, heads].
"""

import contextlib
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def import_magi_attention() -> Any:
    """Return the package, made fit for this process's CPU; call once, before any other use."""
    os.environ["MAGI_ATTENTION_KERNEL_BACKEND"] = "sdpa"
    for name in ("magi_attn_ext", "magi_attn_comm"):
        sys.modules[f"magi_attention.{name}"] = _Extension(name)
    _forget_cuda()
    package = import_module("magi_attention")
    for name in ("common.range_op", "comm.primitive.grpcoll.utils"):
        module: Any = import_module(f"magi_attention.{name}")
        module.range_gather, module.range_reduce = _range_gather, _range_reduce
    dist_attn: Any = import_module("magi_attention.functional.dist_attn")
    dist_attn.correct_attn_out_lse = _correct
    mode: Any = _OnCpu()
    mode.__enter__()
    return package


class _Nothing:
    """Stands for a stream, an event or a barrier: every method returns at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _Extension(ModuleType):
    """Stands for a compiled module; whatever is imported from it is a class of `_Nothing`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


def _forget_cuda() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.current_stream = cuda.Stream = cuda.Event = _Nothing
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_: None
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda *_: None


class _OnCpu(TorchFunctionMode):
    """Makes tensors that are asked for on "cuda" on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _range_gather(
    input: Tensor, ranges: Tensor, dim: int = 0, output: Tensor | None = None, **_: Any
) -> Tensor:
    rows = [torch.arange(begin, end) for begin, end in ranges.tolist()]
    gathered = input.index_select(dim, torch.cat([torch.arange(0), *rows]))
    return gathered if output is None else output.copy_(gathered)


def _range_reduce(
    input: Tensor,
    output: Tensor,
    input_ranges: Tensor,
    output_ranges: Tensor,
    dim: int = 0,
    deterministic: bool = False,
    reduce_op: str = "sum",
    input_lse: Tensor | None = None,
    output_lse: Tensor | None = None,
    **_: Any,
) -> Any:
    """Add ranges of rows, or merge them as partial attention outputs."""
    assert dim == 0
    assert reduce_op in ("sum", "lse")
    for source, target in zip(input_ranges.tolist(), output_ranges.tolist(), strict=True):
        rows, own = slice(*source), slice(*target)
        if reduce_op == "sum":
            output[own] += input[rows]
        else:
            assert input_lse is not None
            assert output_lse is not None
            _correct(output[own], output_lse[own], input[rows], input_lse[rows], inplace=True)
    return output if reduce_op == "sum" else (output, output_lse)


def _correct(
    out1: Tensor, lse1: Tensor, out2: Tensor, lse2: Tensor, inplace: bool = False
) -> tuple[Tensor, Tensor]:
    """Merge two partial outputs by their logsumexp; -inf on both sides is an empty row."""
    lse = torch.logaddexp(lse1, lse2)
    weight1, weight2 = ((part - lse).exp().nan_to_num(0.0)[..., None] for part in (lse1, lse2))
    out = (weight1 * out1 + weight2 * out2).to(out1.dtype)
    return (out1.copy_(out), lse1.copy_(lse)) if inplace else (out, lse)
