"""Run one optimizer step's micro-batches and measure them; the demo does so twice per step.

Shapes: R ranks; t tokens of a rank's shard.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from libra.agent.batch import build_batch
from libra.agent.cell import Cell
from libra.agent.meter import StepMeter
from libra.attention.pooled import PooledAttention
from libra.examples.model import Transformer, loss_sum
from libra.examples.pairs import Clock, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """A run's figures; loss and gradients are of the whole step, the same on all ranks.

    ``documents`` is a hash of the multiset of all token ranges that were trained on.
    """

    run: Run
    loss: float
    gradients: list[Tensor]
    documents: int


class StepRunner:
    """Run cells forward and backward and sum loss and gradients over all ranks."""

    def __init__(
        self,
        model: Transformer,
        attention: PooledAttention,
        read_tokens: Callable[[int, int, int], ArrayLike],
        clock: Clock,
    ) -> None:
        self._model = model
        self._attention = attention
        self._read_tokens = read_tokens
        self._clock = clock
        self._parameters = list(model.parameters())

    def run(self, cells: Sequence[Cell], label_tokens: int, meter: StepMeter) -> StepResult:
        """Run a step from the current weights, which stay as they are; collective.

        Args:
            cells: this rank's micro-batches.
            label_tokens: of the step over all ranks; the loss is the mean over them.
            meter: takes this run's timings and is closed at the end.
        """
        self._attention.observer = meter
        self._model.zero_grad(set_to_none=True)
        for cell in cells:
            self._attention.prepare(cell.layout)
        dist.barrier()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        loss = sum((self._backward(cell, label_tokens) for cell in cells), torch.zeros(1))
        gradients = self._sum_gradients()
        dist.all_reduce(loss)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        return StepResult(
            run=self._gather(meter, wall_s, cpu_s),
            loss=float(loss),
            gradients=gradients,
            documents=self._sum_documents(cells),
        )

    def _backward(self, cell: Cell, label_tokens: int) -> Tensor:
        batch = build_batch(cell, self._read_tokens)
        logits = self._model(batch.tokens, batch.positions, cell.layout)
        loss = loss_sum(logits, batch.labels) / label_tokens
        loss.backward()
        return loss.detach()[None]

    def _sum_gradients(self) -> list[Tensor]:
        """Sum the gradients over all ranks: a rank's own is its shard's share."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        parts = zip(flat.split(sizes), gradients, strict=True)
        return [part.view_as(gradient) for part, gradient in parts]

    def _gather(self, meter: StepMeter, wall_s: float, cpu_s: float) -> Run:
        """Close the meter's step and return all ranks' figures."""
        step_s = wall_s if self._clock == "wall" else cpu_s
        totals = meter.end_step(step_s)
        if totals is None:
            raise RuntimeError("the meter saw no step, or one with seconds beyond belief")
        figures = torch.tensor(
            [
                step_s,
                sum(kernels.seconds for kernels in totals.kernels),
                totals.wait_seconds,
                meter.kernel_wall_seconds,
                meter.kernel_cpu_seconds,
                totals.sent_bytes,
            ],
            dtype=torch.float64,
        )
        ranks = [torch.empty_like(figures) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, figures)
        step, kernel, wait, wall, cpu, sent = torch.stack(ranks, dim=1).tolist()
        return Run(
            step_seconds=max(step),
            kernel_seconds=kernel,
            wait_seconds=wait,
            kernel_wall_seconds=wall,
            kernel_cpu_seconds=cpu,
            sent_bytes=int(sum(sent)),
        )

    def _sum_documents(self, cells: Sequence[Cell]) -> int:
        """Return the hash of what all ranks train on; the ranks of a CP group share sequences."""
        own = hash_documents(cells) if self._attention.pools.cp_rank == 0 else 0
        summed = torch.tensor([own], dtype=torch.int64)
        dist.all_reduce(summed)
        return int(summed)


def hash_documents(cells: Sequence[Cell]) -> int:
    """Return a hash of the multiset of token ranges: sums of it do not depend on who holds what."""
    total = 0
    for part in (cell.segments for cell in cells):
        ranges = zip(part.document.tolist(), part.begin.tolist(), part.end.tolist(), strict=True)
        # A hash of integers is the same in all processes; 40 bits leave room for sums.
        total += sum(hash(one) & ((1 << 40) - 1) for one in ranges)
    return total


def largest_difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the worst over tensors of max |actual - expected| / max |expected|."""
    differences = [
        (a - e).abs().max() / e.abs().max().clamp_min(torch.finfo(e.dtype).tiny)
        for a, e in zip(actual, expected, strict=True)
    ]
    # torch's max keeps a NaN, Python's may lose it.
    return float(torch.stack(differences).max())
