"""What an attention computes, beside its tensors."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """The softmax of a causal attention.

    Attributes:
        scale: what query-key products are multiplied by.
        softcap: scores become ``softcap * tanh(scores / softcap)``; None leaves them as they are.
        window: how many keys a query reads at most, its own included; None reads all up to it.

    Raises:
        ValueError: the scale is not finite, the softcap not positive or the window below one.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"scale={self.scale}: must be finite")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ValueError(f"softcap={self.softcap}: must be positive and finite, or None")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1, or None")
