"""Buffers that outlive one call, so that steps of changing shapes allocate nothing new."""

from collections import defaultdict

import torch
from torch import Tensor

# As many as one direction of a layer has in flight, twice over.
_MAX_FREE = 16
# A buffer larger than this many times what is asked for waits for who needs its size, or the
# largest would serve the smallest and more of the largest be made.
_MAX_SPARE = 4
# Sizes are rounded up to this share of their power of two: a few per cent more room for fewer
# distinct sizes.
_STEPS = 8


class Workspace:
    """Flat buffers to take and give back; not for several threads."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)

    def take(self, elements: int, like: Tensor) -> Tensor:
        """Return a flat buffer of exactly ``elements``, not initialised."""
        free = self._free[like.device, like.dtype]
        fitting = [
            index
            for index, own in enumerate(free)
            if elements <= own.numel() <= _MAX_SPARE * elements
        ]
        # Buffers made in inference mode could not serve training after.
        with torch.inference_mode(False):
            if fitting:
                whole = free.pop(min(fitting, key=lambda index: free[index].numel()))
            else:
                whole = like.new_empty(_rounded_up(elements))
            return whole[:elements]

    def give(self, buffer: Tensor) -> None:
        """Take back a buffer that nobody reads any more."""
        whole = buffer._base if buffer._base is not None else buffer
        if not whole.numel():
            return
        free = self._free[whole.device, whole.dtype]
        free.append(whole)
        if len(free) > _MAX_FREE:
            # Given back first, so not asked for since: of a size that came once.
            free.pop(0)

    @property
    def free_bytes(self) -> int:
        """Bytes that are held for later."""
        return sum(own.numel() * own.element_size() for free in self._free.values() for own in free)


def _rounded_up(elements: int) -> int:
    step = (1 << max(0, elements.bit_length() - 1)) // _STEPS or 1
    return -(-elements // step) * step
