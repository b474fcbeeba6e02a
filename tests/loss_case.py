"""One optimizer step of a tiny model on real ranks, and the same step document by document.

Cases are plain data, as in ``attention_case``: made in the test's process, run in the ranks.

Shapes: t tokens of a rank's shard; H query heads and G kv heads of D features each; V ids.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from libra.agent.batch import IGNORED_LABEL, Batch, build_batch
from libra.agent.cell import Cell
from libra.agent.meter import StepMeter
from libra.agent.placing import Pools
from libra.agent.sampler import PoolSampler
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.shape import PoolShape
from libra.balancer.policy import HOME_POLICY
from libra.examples.model import Attention, ModelSettings, Transformer
from libra.examples.step import StepRunner
from tests.attention_case import Mesh, mesh_pools
from tests.coordinates import POLICY, Place
from tests.reference import dense_attention

SETTINGS = ModelSettings(
    vocabulary_size=53, layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8, mlp_hidden=16
)
# Which tokens count as labels: all, the ends of some documents, those of one, a single one.
Labels = Literal["all", "answers", "document", "one"]
# What joins the ranks' gradients: sums after the last micro-batch, or torch in every one.
Wrapper = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one optimizer step trains on, whatever ranks there are.

    Attributes:
        lengths: of the documents.
        tokens: of a packed sequence.
        global_batch: sequences of the step; empty ones where documents do not fill them.
        index: of the step in the epoch.
    """

    lengths: tuple[int, ...]
    tokens: int
    global_batch: int = 4
    packing: Literal["best_fit", "stream"] = "best_fit"
    labels: Labels = "all"
    index: int = 0

    def sampler(self, pools: Pools) -> PoolSampler:
        return PoolSampler(
            list(self.lengths),
            pools,
            tokens=self.tokens,
            global_batch=self.global_batch,
            query_heads=SETTINGS.heads,
            kv_heads=SETTINGS.kv_heads,
            packing=self.packing,
            last="pad",
            seed=1,
            # So that tiles move between sequences as short as these.
            planning=PlanSettings(block_rows=8, min_gain_permille=0),
        )

    def are_labels(self, document: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return 1 for each token of a document that the model is to predict."""
        at = np.arange(begin, end)
        if self.labels == "one":
            return np.asarray((document == 0) & (at == 1), dtype=np.int64)
        if self.labels == "document":
            return np.full(end - begin, document == 0, dtype=np.int64)
        if self.labels == "answers":
            first = self.lengths[document] * (document % 4) // 4
            return np.asarray(at >= first, dtype=np.int64)
        return np.ones(end - begin, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What one rank saw of a step; loss and gradients are those of all ranks together.

    Attributes:
        loss: mean over the step's labels.
        gradients: of every parameter.
        labels: of this rank in each micro-batch.
        empty: whether this rank's sequence held no document, by micro-batch.
        reached: parameters that got a gradient, by micro-batch; not seen through FSDP.
        moved: tiles.
    """

    loss: float
    gradients: list[Tensor]
    labels: list[int] = field(default_factory=list)
    empty: list[bool] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    moved: int = 0


def read_tokens(document: int, begin: int, end: int) -> NDArray[np.int64]:
    """Return ids that differ from document to document and repeat in none for long."""
    at = np.arange(begin, end)
    return np.asarray((at * at + 7 * at * (document + 1) + document) % SETTINGS.vocabulary_size)


def make_model(attention: Attention) -> Transformer:
    """Return a float64 model, of the same weights at every call."""
    torch.manual_seed(0)
    model = Transformer(SETTINGS, attention)
    for parameter in model.parameters():
        # At the usual small initial weights attention is all but flat and hides errors.
        nn.init.normal_(parameter, mean=0.0, std=0.3)
    return model.double()


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy summed over labels in the logits' own precision."""
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")


def train_step(rank: int, mesh: Mesh, step: Step, wrapper: Wrapper = "none") -> Trained:
    """Run a step on this rank: ranks sum losses and gradients, divided by the step's labels.

    Torch's own wrappers average gradients over ranks, in each backward.
    """
    pools = mesh_pools(mesh)
    model = make_model(PooledAttention(pools))
    wrapped = _wrapped(model, wrapper)
    cells = step.sampler(pools).cells(step.index, POLICY)
    batches = [labelled(step, cell) for cell in cells]
    labels = [int((batch.labels != IGNORED_LABEL).sum()) for batch in batches]
    total = max(1, int(_summed(torch.tensor([sum(labels)]))))
    loss, reached = torch.zeros(1, dtype=torch.float64), _count_gradients(model)
    for cell, batch in zip(cells, batches, strict=True):
        reached.append(0)
        logits = wrapped(batch.tokens, batch.positions, cell.layout)
        own = loss_sum(logits, batch.labels) / total
        own.backward()
        loss += own.detach()
    gradients = [cast(Tensor, parameter.grad) for parameter in model.parameters()]
    return Trained(
        loss=float(_summed(loss)),
        gradients=[_of_all_ranks(gradient, wrapper) for gradient in gradients],
        labels=labels,
        empty=[not len(cell.segments) for cell in cells],
        reached=reached,
        moved=sum(cell.layout.plan.moved for cell in cells),
    )


def train_as_example(rank: int, mesh: Mesh, step: Step) -> Trained:
    """Run a step in float32 as the example's script does."""
    pools = mesh_pools(mesh)
    attention = PooledAttention(pools)
    sampler = step.sampler(pools)
    runner = StepRunner(make_model(attention).float(), attention, read_tokens, "cpu")
    cells = sampler.cells(step.index, POLICY)
    result = runner.run(cells, sampler.label_tokens(step.index), StepMeter("cpu"))
    return Trained(loss=result.loss, gradients=[gradient.double() for gradient in result.gradients])


def labelled(step: Step, cell: Cell) -> Batch:
    """Return a rank's batch with the step's labels only.

    Whether a token counts is drawn through the same packing and sharding as its id.
    """
    batch = build_batch(cell, read_tokens)
    counts = build_batch(cell, step.are_labels).labels == 1
    labels = torch.where(counts, batch.labels, IGNORED_LABEL)
    return Batch(tokens=batch.tokens, labels=labels, positions=batch.positions)


def _wrapped(model: Transformer, wrapper: Wrapper) -> nn.Module:
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh)
    return model


def _of_all_ranks(gradient: Tensor, wrapper: Wrapper) -> Tensor:
    if wrapper == "none":
        return _summed(gradient)
    whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return whole * dist.get_world_size()


def _count_gradients(model: nn.Module) -> list[int]:
    """Return a list whose last item counts the gradients that arrive."""
    reached: list[int] = []

    def arrived(_: Any) -> None:
        reached[-1] += 1

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(arrived)
    return reached


def _summed(own: Tensor) -> Tensor:
    dist.all_reduce(own)
    return own


@lru_cache(maxsize=16)
def train_documents(step: Step) -> Trained:
    """Run the step's documents one by one in this process: no packing, no shards, no pools."""
    model = make_model(dense_attention)
    alone = Place(PoolShape(dp=1, cp=1, sequences_per_pool=1), 0)
    losses, labels = [torch.zeros((), dtype=torch.float64)], 0
    for cell in step.sampler(alone).cells(step.index, HOME_POLICY):
        part = cell.segments
        for document in zip(
            part.document.tolist(), part.begin.tolist(), part.end.tolist(), strict=True
        ):
            tokens = torch.from_numpy(read_tokens(*document))
            wanted = torch.from_numpy(step.are_labels(*document))[1:]
            logits = model(tokens, torch.arange(len(tokens)), [len(tokens)])[:-1]
            each = functional.cross_entropy(logits, tokens[1:], reduction="none")
            losses.append((each * wanted).sum())
            labels += int(wanted.sum())
    loss = torch.stack(losses).sum() / max(1, labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return Trained(loss=float(loss.detach()), gradients=list(gradients), labels=[labels])
