"""Buffers come back, fit, stay few, and are never two exchanges' at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from libra.attention.workspace import Workspace

LIKE = torch.empty(0)


def _memory(buffer: Tensor) -> int:
    return buffer.untyped_storage().data_ptr()


def test_a_buffer_given_back_serves_the_next() -> None:
    """The same memory, exactly as long as asked for, also where a little less is."""
    workspace = Workspace()
    first = workspace.take(1000, LIKE)
    where = _memory(first)
    workspace.give(first)
    second = workspace.take(900, LIKE)

    assert (first.shape, second.shape) == ((1000,), (900,))
    assert _memory(second) == where
    assert workspace.free_bytes == 0


def test_the_smallest_that_fits_is_taken() -> None:
    """Larger buffers stay for larger needs."""
    workspace = Workspace()
    buffers = {size: workspace.take(size, LIKE) for size in (4096, 1024, 2048)}
    for buffer in buffers.values():
        workspace.give(buffer)

    assert _memory(workspace.take(1025, LIKE)) == _memory(buffers[2048])
    assert _memory(workspace.take(1000, LIKE)) == _memory(buffers[1024])


def test_a_far_larger_buffer_is_not_taken() -> None:
    """A few elements do not occupy what a large exchange will need next."""
    workspace = Workspace()
    large = workspace.take(1 << 16, LIKE)
    workspace.give(large)

    assert _memory(workspace.take(8, LIKE)) != _memory(large)
    assert _memory(workspace.take(1 << 16, LIKE)) == _memory(large)


def test_dtypes_and_devices_do_not_share() -> None:
    """What was float32 on the CPU serves neither float64 nor another device."""
    workspace = Workspace()
    for like in (LIKE, LIKE.double(), LIKE.to("meta")):
        workspace.give(workspace.take(100, like))
    free = workspace.free_bytes
    taken = [workspace.take(100, like) for like in (LIKE.to("meta"), LIKE.double(), LIKE)]

    assert [(x.device.type, x.dtype) for x in taken] == [
        ("meta", torch.float32),
        ("cpu", torch.float64),
        ("cpu", torch.float32),
    ]
    assert free > 0
    assert workspace.free_bytes == 0


def test_few_buffers_are_held_and_the_longest_unused_go_first() -> None:
    """Sizes that came once do not stay for good, and what is held has a bound."""
    workspace = Workspace()
    for size in range(1, 41):
        workspace.give(workspace.take(4096 * size, LIKE))
    taken = [workspace.take(1 << 10, LIKE) for _ in range(40)]
    for buffer in taken:
        workspace.give(buffer)

    assert workspace.free_bytes == 16 * 4 * (1 << 10)


@pytest.mark.parametrize("inference", [False, True])
def test_buffers_of_inference_can_be_written_to_in_training(inference: bool) -> None:
    """They are made as training's are, whichever comes first."""
    workspace = Workspace()
    with torch.inference_mode(inference):
        workspace.give(workspace.take(100, LIKE))
    buffer = workspace.take(100, LIKE)
    buffer += 1

    assert not buffer.is_inference()


Steps = st.lists(st.one_of(st.integers(0, 5000), st.none()), max_size=80)


@given(Steps)
def test_no_memory_is_handed_out_twice(steps: list[int | None]) -> None:
    """Whatever is taken and given back, buffers in use are apart, and few are held for later."""
    workspace, used = Workspace(), list[Tensor]()
    largest = 0
    for elements in steps:
        if elements is None:
            if used:
                workspace.give(used.pop(0))
        else:
            used.append(workspace.take(elements, LIKE))
            assert used[-1].shape == (elements,)
            largest = max(largest, elements)
        addresses = [_memory(buffer) for buffer in used if buffer.numel()]
        assert len(set(addresses)) == len(addresses)
        # Sixteen, each an eighth of a power of two larger at most.
        assert workspace.free_bytes <= 16 * 4 * (largest + largest // 4 + 1)
