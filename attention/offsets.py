"""A call's segment offsets on the kernel's device, copied there once.

Shapes: n segments.
"""

import weakref
from dataclasses import dataclass

import torch
from numpy.typing import NDArray
from torch import Tensor

from libra.attention.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOffsets:
    """What a varlen kernel wants to know of its segments.

    Attributes:
        queries: [n + 1] int32 cumulative query rows.
        keys: [n + 1] int32 cumulative keys.
        most_queries: query rows of the largest segment.
        most_keys: keys of the largest segment.
    """

    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int


# Segments hold arrays, so they cannot be hashed; nor may they carry tensors of a device, for they
# travel between processes. A stream of its own each: a copy is ordered only on its own stream.
_Key = tuple[int, torch.device, int]
_kept: dict[_Key, tuple[weakref.ref[Segments], DeviceOffsets]] = {}


def device_offsets(segments: Segments, device: torch.device) -> DeviceOffsets:
    """Return the offsets on a device, the same ones as long as the segments live."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = (id(segments), device, stream)
    kept = _kept.get(key)
    if kept is not None and kept[0]() is segments:
        return kept[1]
    offsets = DeviceOffsets(
        queries=_to_device(segments.query_offsets, device),
        keys=_to_device(segments.key_offsets, device),
        most_queries=int(segments.query_tokens.max()),
        most_keys=int(segments.key_tokens.max()),
    )
    _kept[key] = (weakref.ref(segments, lambda _: _forget(key)), offsets)
    return offsets


def _forget(key: _Key) -> None:
    _kept.pop(key, None)


def _to_device(values: NDArray, device: torch.device) -> Tensor:  # type: ignore[type-arg]
    host = torch.from_numpy(values)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
