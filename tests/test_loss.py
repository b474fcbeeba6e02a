"""Loss and gradients of a step are those of its documents one by one, whoever holds which labels.

Start here when ranks' losses are averaged where they should be summed, or summed twice: ranks have
unequal numbers of labels, some none at all, and the mean is over those of the whole step.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.attention_case import Mesh
from tests.loss_case import (
    Step,
    Trained,
    Wrapper,
    train_as_example,
    train_documents,
    train_step,
)
from tests.workers import RankWorkers

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

WorkerRanks = Callable[[int], RankWorkers]

# Of float64: sums of two thousand products, two layers deep, round to some ten units in the last
# place. One label too many among the most there are here is off by a four-thousandth.
EXACT = 1e-12

MESHES = [
    Mesh(ranks=1, cp=1, pool=1),
    Mesh(ranks=2, cp=1, pool=2),
    Mesh(ranks=2, cp=2, pool=1),
    Mesh(ranks=4, cp=2, pool=2),
    Mesh(ranks=4, cp=4, pool=1),
    Mesh(ranks=4, cp=1, pool=1, largest=4),
]
# Lengths that no number of ranks divides, in two sequences of a prime number of tokens, and two
# empty ones.
ODD = Step(lengths=(137, 2041, 89, 781, 1), tokens=2053)
# Documents that are cut where sequences end; the last step is half empty.
MANY = Step(lengths=tuple(range(1, 62, 3)) * 2, tokens=131, packing="stream")
STEPS = {
    "all": ODD,
    "unequal numbers of labels": replace(ODD, labels="answers"),
    "labels in one document": replace(ODD, labels="document"),
    "one label": replace(ODD, labels="one"),
    "cut documents": MANY,
    "cut documents, unequal": replace(MANY, labels="answers", index=2),
    "fewer tokens than ranks": Step(lengths=(3, 2, 3, 1, 3), tokens=3),
    "no label": Step(lengths=(1,) * 3, tokens=1),
}


def _name(mesh: Mesh) -> str:
    return f"{mesh.dp}x{mesh.cp}-pool{mesh.pool}to{max(mesh.pool, mesh.largest)}"


def expect_equal(ranks: list[Trained], expected: Trained, tolerance: float = EXACT) -> None:
    """Every rank has the loss and, parameter by parameter, the gradients."""
    for own in ranks:
        assert own.loss == pytest.approx(expected.loss, rel=tolerance, abs=EXACT)
        for gradient, wanted in zip(own.gradients, expected.gradients, strict=True):
            largest = max(float(wanted.abs().max()), EXACT)
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("mesh", MESHES, ids=_name)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_any_mesh_trains_as_one_document_after_another(
    worker_ranks: WorkerRanks, mesh: Mesh, step: Step
) -> None:
    """From equal weights: the same mean over labels, the same gradients, whatever the ranks.

    Every micro-batch reaches every parameter, so what other ranks wait for there is done.
    """
    ranks = worker_ranks(mesh.ranks).run(train_step, mesh, step)

    assert sum(sum(own.labels) for own in ranks) == sum(train_documents(step).labels)
    expect_equal(ranks, train_documents(step))
    assert all(own.reached == [len(own.gradients)] * len(own.labels) for own in ranks)


def test_steps_are_of_the_kinds_they_are_named_for(worker_ranks: WorkerRanks) -> None:
    """Tiles move, and there are ranks, shards and micro-batches without a label, or with one."""
    mesh = Mesh(ranks=4, cp=2, pool=2)
    seen = {name: worker_ranks(4).run(train_step, mesh, step) for name, step in STEPS.items()}
    labels = {name: [own.labels for own in ranks] for name, ranks in seen.items()}

    assert all(any(own.moved for own in seen[name]) for name in ("all", "cut documents"))
    assert any(any(own.empty) for own in seen["all"])
    assert len({sum(own) for own in labels["unequal numbers of labels"]}) > 2
    assert sum(map(sum, labels["one label"])) == 1
    # A micro-batch of no label at all, and a shard of none beside one that has some.
    document = labels["labels in one document"]
    assert 0 in [sum(counts) for counts in zip(*document, strict=True)]
    first, second = next(pair for pair in (document[:2], document[2:]) if sum(map(sum, pair)))
    assert any(bool(one) != bool(two) for one, two in zip(first, second, strict=True))
    assert not any(map(sum, labels["no label"]))


@pytest.mark.parametrize("mesh", MESHES[1:4], ids=_name)
def test_sequences_of_no_document_change_nothing(worker_ranks: WorkerRanks, mesh: Mesh) -> None:
    """A step filled up with empty sequences has the loss and gradients of the step without."""
    without = worker_ranks(mesh.ranks).run(train_step, mesh, replace(ODD, global_batch=2))
    filled = worker_ranks(mesh.ranks).run(train_step, mesh, replace(ODD, global_batch=8))

    assert not any(any(own.empty) for own in without)
    assert any(all(empty) for empty in zip(*(own.empty for own in filled), strict=True))
    expect_equal(filled, without[0])


@pytest.mark.parametrize("mesh", MESHES[3:], ids=_name)
@pytest.mark.parametrize("name", ["unequal numbers of labels", "one label"])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_ranks_that_meet_in_every_micro_batch_never_miss_each_other(
    worker_ranks: WorkerRanks, mesh: Mesh, name: str, wrapper: Wrapper
) -> None:
    """Torch's own data parallelism waits for every rank's gradients, empty sequences' too."""
    ranks = worker_ranks(mesh.ranks).run(train_step, mesh, STEPS[name], wrapper)

    assert any(any(own.empty) for own in ranks)
    expect_equal(ranks, train_documents(STEPS[name]))


# Of float32, as the demo has it.
SINGLE = 2e-5


@pytest.mark.parametrize("mesh", MESHES[:4], ids=_name)
@pytest.mark.parametrize("name", ["all", "cut documents"])
def test_the_examples_step_divides_by_the_labels_of_all_ranks(
    worker_ranks: WorkerRanks, mesh: Mesh, name: str
) -> None:
    """The script that users copy has the mean loss and gradients, at its own precision."""
    ranks = worker_ranks(mesh.ranks).run(train_as_example, mesh, STEPS[name])

    expect_equal(ranks, train_documents(STEPS[name]), SINGLE)
