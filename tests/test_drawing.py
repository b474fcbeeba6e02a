"""What steps draw: each document once an epoch, epochs of their own size, the same on all ranks."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.utils.data import RandomSampler, WeightedRandomSampler

from libra.agent.batch import IGNORED_LABEL, build_batch
from libra.agent.sampler import PoolSampler
from tests.coordinates import LENGTHS, POLICY, Documents, documents, documents_of_step, samplers


def whole_epoch(ranks: list[PoolSampler], epoch: int) -> Documents:
    """What all ranks are given in an epoch; they take turns, as they would."""
    for sampler in ranks:
        sampler.set_epoch(epoch)
    return documents(cell for cells in zip(*ranks, strict=True) for cell in cells)


@pytest.mark.parametrize("packing", ["best_fit", "stream"])
def test_every_token_comes_once_an_epoch(packing: str) -> None:
    """Padded, each document comes exactly once; else at most once, and what is missing counts."""
    for epoch in range(3):
        padded = whole_epoch(samplers(2, 2, packing=packing, last="pad"), epoch)
        ranks = samplers(2, 2, packing=packing)
        dropped = whole_epoch(ranks, epoch)
        tokens: Counter[int] = Counter()
        for (document, begin, end), count in padded.items():
            assert count == 1
            tokens[document] += end - begin

        assert [tokens[document] for document in range(len(LENGTHS))] == LENGTHS.tolist()
        assert dropped <= padded
        assert (dropped == padded) == (ranks[0].dropped_sequences == 0)


def test_a_last_step_is_filled_with_empty_sequences() -> None:
    """All ranks run the same micro-batches, some of them of nothing but padding and no label."""
    ranks = samplers(4, 2, lengths=np.full(13, 1000), global_batch=8, last="pad")
    cells = [list(sampler) for sampler in ranks]
    empty = [cell for own in cells for cell in own if not len(cell.segments)]
    batch = build_batch(empty[0], lambda d, b, e: np.ones(e - b))

    assert [sampler.padded_sequences for sampler in ranks] == [3] * 4
    assert [len(own) for own in cells] == [len(sampler) for sampler in ranks] == [4] * 4
    assert len(empty) == 3
    assert (batch.labels == IGNORED_LABEL).all()
    assert not batch.tokens.any()
    assert ranks[0].label_tokens(1) == 5 * 999


def test_the_sequences_that_fill_no_step_are_counted() -> None:
    """Thirteen sequences are one step of eight, and five that are left out."""
    (sampler, *_) = samplers(4, 2, lengths=np.full(13, 1000), global_batch=8)

    assert (sampler.steps_per_epoch, len(sampler)) == (1, 2)
    assert (sampler.dropped_sequences, sampler.padded_sequences) == (5, 0)


class Growing:
    """A user's sampler whose epochs have more and more documents, each twice."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([*range(8 * (self.epoch + 1))] * 2)


def test_epochs_have_as_many_steps_as_their_sequences_fill() -> None:
    """Steps are counted over epochs of different sizes; none is dropped, none belongs to two."""
    ranks = samplers(2, 2, lengths=np.full(100, 1000), global_batch=4, documents=Growing())
    starts = [0, 4, 12, 24]
    for epoch in (2, 0, 1):
        given = whole_epoch(ranks, epoch)

        assert ranks[0].steps_per_epoch == 4 * (epoch + 1)
        assert given == Counter({(d, 0, 1000): 2 for d in range(8 * (epoch + 1))})
        steps = range(starts[epoch], starts[epoch + 1])
        assert [ranks[0].epoch_of(step) for step in steps] == [epoch] * len(steps)
        assert given == sum((documents_of_step(ranks, s, POLICY) for s in steps), Counter())


def test_a_step_tells_its_epoch_before_any_is_drawn() -> None:
    """Asked of a sampler that has drawn nothing, the first step of an epoch is its own."""
    epochs = []
    for step in (0, 3, 4, 11, 12, 23, 24):
        (sampler, *_) = samplers(
            2, 2, lengths=np.full(100, 1000), global_batch=4, documents=Growing()
        )
        epochs.append(sampler.epoch_of(step))

    assert epochs == [0, 0, 1, 1, 2, 2, 3]


def test_set_epoch_is_that_of_torchs_distributed_sampler() -> None:
    """The next iteration draws the epoch set, and draws it again until another is set."""
    (sampler, *_) = samplers(2, 2)
    first, again = documents(sampler), documents(sampler)
    sampler.set_epoch(1)
    second = documents(sampler)

    assert first == again != second
    assert max(second.values()) == 1


def test_a_generator_draws_its_next_iteration_in_the_next_epoch() -> None:
    """Epoch e is the e-th iteration of a seeded torch sampler, whichever epoch comes first."""

    def mixture() -> WeightedRandomSampler:
        generator = torch.Generator().manual_seed(3)
        weights = [1.0] * 300 + [4.0] * 300
        return WeightedRandomSampler(weights, 400, generator=generator)

    def epochs(*wanted: int) -> list[Documents]:
        ranks = [samplers(2, 2, documents=mixture(), last="pad")[rank] for rank in range(2)]
        return [whole_epoch(ranks, epoch) for epoch in wanted]

    first, second, third = epochs(0, 1, 2)

    assert first != second != third
    assert epochs(2) == [third]
    source = mixture()
    assert sum(first.values()) >= 400
    assert Counter(d for d, begin, _ in first.elements() if begin == 0) == Counter(source)


@pytest.mark.parametrize(
    ("settings", "differs"),
    [({"seed": 8}, "seed=8"), ({"packing": "stream"}, "packing=stream"), ({"last": "pad"}, "pad")],
)
def test_ranks_that_draw_otherwise_stop(settings: dict[str, Any], differs: str) -> None:
    """The first step of an epoch finds a rank that was set up otherwise, and says in what."""
    store = HashStore()
    one, _ = samplers(2, 2, store=store)
    _, two = samplers(2, 2, store=store, **settings)
    next(iter(one))

    with pytest.raises(RuntimeError, match=differs):
        next(iter(two))


def test_an_unseeded_sampler_of_documents_is_caught() -> None:
    """Ranks that draw their documents by generators of their own never train on them."""
    store = HashStore()
    for rank, sampler in enumerate(
        samplers(2, 2, store=store, documents=RandomSampler(LENGTHS, num_samples=500))[rank]
        for rank in range(2)
    ):
        if rank == 0:
            next(iter(sampler))
            continue
        with pytest.raises(RuntimeError, match="drawn="):
            next(iter(sampler))


def test_every_document_of_an_order_counts() -> None:
    """Ranks whose samplers differ in two documents only, anywhere in the epoch, are told apart."""
    store = HashStore()
    order = list(range(600))
    swapped = [*order[:300], 301, 300, *order[302:]]
    one, _ = samplers(2, 2, store=store, documents=order, lengths=np.full(600, 9), tokens=10)
    _, two = samplers(2, 2, store=store, documents=swapped, lengths=np.full(600, 9), tokens=10)
    next(iter(one))

    with pytest.raises(RuntimeError, match="drawn="):
        next(iter(two))


@pytest.mark.parametrize(
    ("own", "match"),
    [([], "no document in epoch 0"), ([0.5], "indices"), ([[1]], "indices"), ([600], "order")],
)
def test_a_sampler_of_something_else_is_refused(own: list[Any], match: str) -> None:
    """What yields nothing, no integers, or no documents there are, is named before it trains."""
    (sampler, *_) = samplers(2, 2, documents=own, global_batch=2, last="pad")
    with pytest.raises(ValueError, match=match):
        sampler.cells(0, POLICY)


@pytest.mark.parametrize("packing", ["best_fit", "stream"])
def test_a_step_can_be_agreed_on_before_anything_is_drawn(packing: str) -> None:
    """A training loop of its own asks for policies first; nothing is known of the epoch then."""
    ranks = samplers(2, 2, packing=packing)

    assert [sampler.agree(0).version for sampler in ranks] == [POLICY.version] * 2
