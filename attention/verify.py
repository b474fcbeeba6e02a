"""Check the pooled plan against plain Ulysses while training, for the first steps of a job.

Both plans run on the same inputs, and outputs and gradients are compared on all ranks of the
pool together, so that all go on or all stop. Costs a second attention and its memory.

Shapes: T tokens of a rank's own sequence; h, g heads that it holds; D head dim.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from libra.attention.failure import exchanging
from libra.attention.pool import Pool

logger = logging.getLogger(__name__)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Largest absolute difference over the largest absolute value. Both plans add up the same terms in
# other orders: rounding grows with the square root of their number, seldom beyond these.
_DEFAULT_BOUND = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 4e-2,
    torch.float16: 5e-3,
}


class VerificationError(RuntimeError):
    """The pooled plan and plain Ulysses differ by more than rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifySettings:
    """How long and how strictly to compare.

    Attributes:
        steps: optimizer steps to compare, from the first; 0 is never.
        bound: largest difference over the largest value; by dtype when ``None``.
    """

    steps: int = 0
    bound: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps={self.steps}: must be at least 0")
        if self.bound is not None and not self.bound > 0:
            raise ValueError(f"bound={self.bound}: must be positive")


class Verifier:
    """Runs both plans and compares, while there are steps left to compare."""

    def __init__(self, settings: VerifySettings) -> None:
        self.largest = 0.0
        self._settings = settings
        self._seen: set[int] = set()

    def wants(self, step: int) -> bool:
        """Return whether to compare in a step."""
        if step not in self._seen and len(self._seen) < self._settings.steps:
            self._seen.add(step)
        return step in self._seen

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        pooled: Attend,
        home: Attend,
        *,
        pool: Pool,
        step: int,
    ) -> Tensor:
        """Return what ``pooled`` returns, after comparing it with ``home``; so in backward.

        Args:
            qkv: [T, h, D] and two [T, g, D].
            pooled, home: attention by either plan.
            pool: all ranks of which compare, as often as each other.
            step: for messages.

        Raises:
            VerificationError: on all ranks of the pool when any sees too large a difference.
        """

        def compare(names: Sequence[str], got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
            self._compare(names, got, wanted, pool, step)

        out: Tensor = _Verified.apply(*qkv, pooled, home, compare)  # type: ignore[no-untyped-call]
        return out

    def _compare(
        self,
        names: Sequence[str],
        got: Sequence[Tensor],
        wanted: Sequence[Tensor],
        pool: Pool,
        step: int,
    ) -> None:
        bound = self._settings.bound or _DEFAULT_BOUND[got[0].dtype]
        found = [_difference(*pair) for pair in zip(got, wanted, strict=True)]
        # NaN is no number to be the largest: it must not get lost on the way.
        worst = torch.tensor([own if own == own else torch.inf for own in found])
        with pool.roll_call.guard(), exchanging():
            dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=pool.pool_agreement_group)
        figures = dict(zip(names, worst.tolist(), strict=True))
        self.largest = max(self.largest, *figures.values())
        told = ", ".join(f"{name} {value:.1e}" for name, value in figures.items())
        logger.info("Step %d, pooled against plain Ulysses: %s of %.1e.", step, told, bound)
        if max(figures.values()) > bound:
            raise VerificationError(
                f"In step {step} the pooled plan differs from plain Ulysses by {told}; "
                f"the bound is {bound:.1e}"
            )


def _difference(got: Tensor, wanted: Tensor) -> float:
    if not got.numel():
        return 0.0
    largest = float(wanted.abs().max())
    return float((got - wanted).abs().max()) / (largest or 1.0)


class _Verified(torch.autograd.Function):
    """Both plans' graphs, of which the pooled one's results are passed on."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pooled: Attend,
        home: Attend,
        compare: Callable[[Sequence[str], Sequence[Tensor], Sequence[Tensor]], None],
    ) -> Tensor:
        with torch.enable_grad():
            inputs = [[x.detach().requires_grad_() for x in (q, k, v)] for _ in range(2)]
            outs = [attend(*own) for attend, own in zip((pooled, home), inputs, strict=True)]
        compare(["out"], [outs[0].detach()], [outs[1].detach()])
        ctx.inputs, ctx.outs, ctx.compare = inputs, outs, compare
        return outs[0].detach()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        found = [
            torch.autograd.grad(out, own, grads[0], retain_graph=True)
            for out, own in zip(ctx.outs, ctx.inputs, strict=True)
        ]
        ctx.compare(["dq", "dk", "dv"], *found)
        return *found[0], None, None, None
