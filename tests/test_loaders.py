"""Loaders of torch and torchdata give the sampler's cells, in order, and resume where they were."""

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torchdata.stateful_dataloader import StatefulDataLoader

from libra.agent.ahead import Ahead
from libra.agent.batch import IGNORED_LABEL, Batch, build_batch
from libra.agent.dataset import CellDataset
from libra.agent.sampler import PoolSampler
from libra.attention.layout import BatchLayout
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from libra.examples.model import ModelSettings, Transformer, loss_sum
from tests.coordinates import samplers
from tests.ranks import PRELOADED, run_ranks

# torchdata 0.11 still calls what torch 2.13 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

Told = tuple[int, int, int, list[int]]


def read_tokens(document: int, begin: int, end: int) -> Any:
    return document * 1000 + np.arange(begin, end)


def tell(batch: Batch, layout: BatchLayout) -> Told:
    """Return what makes two batches the same."""
    return layout.step, layout.micro_batch, layout.digest, batch.tokens.tolist()


def one_sampler(**settings: Any) -> PoolSampler:
    """Rank 0's sampler of a job of two."""
    return samplers(2, 2, global_batch=4, lengths=np.full(60, 500), **settings)[0]


def by_hand(sampler: PoolSampler) -> list[Told]:
    return [tell(build_batch(cell, read_tokens), cell.layout) for cell in sampler]


def workers(count: int, **more: Any) -> dict[str, Any]:
    """Return a loader's settings for processes that fork from the tests' clean server."""
    if not count:
        return {"batch_size": None}
    multiprocessing.set_forkserver_preload([*PRELOADED, "tests.test_loaders"])
    context = multiprocessing.get_context("forkserver")
    return {
        "batch_size": None,
        "num_workers": count,
        "multiprocessing_context": context,
        "timeout": 60,
        **more,
    }


LOADERS = [
    workers(0),
    workers(1, prefetch_factor=1),
    workers(2, prefetch_factor=3),
    workers(2, prefetch_factor=2, persistent_workers=True),
]


@pytest.mark.parametrize("settings", LOADERS)
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_any_loader_gives_the_same_batches(kind: Any, settings: dict[str, Any]) -> None:
    """Over several epochs, whoever builds and plans them and however far ahead."""
    sampler, plain = one_sampler(last="pad"), one_sampler(last="pad")
    loader = kind(CellDataset(read_tokens), sampler=sampler, **settings)

    assert len(loader) == len(sampler) == 16
    for epoch in (0, 1, 3):
        sampler.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert [tell(*item) for item in loader] == by_hand(plain)


@pytest.mark.parametrize("settings", LOADERS)
@pytest.mark.parametrize("stop", [1, 7, 16])
def test_a_stateful_loader_resumes_after_what_it_gave(settings: dict[str, Any], stop: int) -> None:
    """What was prefetched and not trained comes again; the epochs after are whole."""
    plain = one_sampler(last="pad")
    expected = by_hand(plain)
    plain.set_epoch(1)
    following = by_hand(plain)

    loader = StatefulDataLoader(
        CellDataset(read_tokens), sampler=one_sampler(last="pad"), **settings
    )
    first = [tell(*item) for item in islice(loader, stop)]
    state = json.loads(json.dumps(loader.state_dict()))
    sampler = one_sampler(last="pad")
    loader = StatefulDataLoader(CellDataset(read_tokens), sampler=sampler, **settings)
    loader.load_state_dict(state)
    rest = [tell(*item) for item in loader]
    sampler.set_epoch(1)

    assert first + rest == expected
    assert [tell(*item) for item in loader] == following


def test_a_stateful_loader_saved_after_its_epoch_begins_the_next() -> None:
    """A state of a loader that has ended is that of the next epoch, set beforehand or not."""
    sampler = one_sampler(last="pad")
    loader = StatefulDataLoader(CellDataset(read_tokens), sampler=sampler, batch_size=None)
    list(loader)
    state = loader.state_dict()
    sampler.set_epoch(1)
    following = [tell(*item) for item in loader]
    for setting in (True, False):
        sampler = one_sampler(last="pad")
        loader = StatefulDataLoader(CellDataset(read_tokens), sampler=sampler, batch_size=None)
        loader.load_state_dict(state)
        if setting:
            sampler.set_epoch(1)
        assert [tell(*item) for item in loader] == following


def test_a_plain_loader_resumes_at_a_step() -> None:
    """``DataLoader`` keeps no state of its own: the next step to train is enough."""
    expected = by_hand(one_sampler())
    sampler = one_sampler()
    loader = DataLoader(CellDataset(read_tokens), sampler=sampler, **workers(2, prefetch_factor=4))
    items = iter(loader)
    first = [tell(*item) for item in islice(items, 6)]
    state = sampler.state_dict(step=3)
    del items
    resumed = one_sampler()
    resumed.load_state_dict(state)

    assert first + by_hand(resumed) == expected


def test_ahead_plans_on_its_thread() -> None:
    """A cell that ``Ahead`` gives has its layout: the training thread does not wait for a plan."""
    for cell in Ahead(one_sampler()):
        assert "layout" in vars(cell)


ODD_LENGTHS = np.random.default_rng(3).integers(1, 998, 70)


def unique_tokens(document: int, begin: int, end: int) -> Any:
    """Each token of the corpus has an id of its own, and none is 0, as padding is."""
    return document * 1000 + np.arange(begin, end) + 1


def job(**settings: Any) -> list[PoolSampler]:
    """Return the samplers of two CP groups of two ranks, which share a store."""
    shared: dict[str, Any] = {
        "cp": 2,
        "global_batch": 4,
        "lengths": ODD_LENGTHS,
        "store": HashStore(),
    }
    columns = [samplers(2, 2, cp_rank=rank, **shared, **settings) for rank in range(2)]
    return [sampler for group in zip(*columns, strict=True) for sampler in group]


# Every rank of a job has a loader of its own, and each reads ahead by another number of batches.
UNEQUAL = [workers(0), workers(1, prefetch_factor=1), workers(2, prefetch_factor=2), workers(1)]


def loaders(kind: Any, ranks: list[PoolSampler]) -> list[Any]:
    return [
        kind(CellDataset(unique_tokens), sampler=sampler, **settings)
        for sampler, settings in zip(ranks, UNEQUAL, strict=True)
    ]


def expect_one_epoch(micro_batches: list[tuple[tuple[Batch, BatchLayout], ...]]) -> None:
    """All ranks are at the same micro-batch at all times, and together saw each token once."""
    seen: Counter[int] = Counter()
    for items in micro_batches:
        assert len({(layout.step, layout.micro_batch) for _, layout in items}) == 1
        for (_, one), (_, two) in (items[:2], items[2:]):
            assert (one.digest, one.place) == (two.digest, two.place)
            assert one.shard.stop == two.shard.start
        seen.update(token for batch, _ in items for token in batch.tokens.tolist() if token)
    everything = [unique_tokens(at, 0, length).tolist() for at, length in enumerate(ODD_LENGTHS)]
    assert seen == Counter(chain.from_iterable(everything))


@pytest.mark.parametrize("packing", ["best_fit", "stream"])
def test_every_token_is_on_one_rank_once_an_epoch(packing: str) -> None:
    """CP ranks hold the shards of one sequence, DP ranks others, through loaders of any kind."""
    ranks = job(last="pad", packing=packing)
    own = loaders(DataLoader, ranks)
    for epoch in (0, 2):
        for sampler in ranks:
            sampler.set_epoch(epoch)
        expect_one_epoch(list(zip(*own, strict=True)))


@pytest.mark.parametrize("stop", [4, 7])
def test_ranks_whose_loaders_read_ahead_resume_together(stop: int) -> None:
    """After a step or within one: all go on at one micro-batch, and no token is lost or doubled."""
    own = loaders(StatefulDataLoader, job(last="pad"))
    before = list(islice(zip(*own, strict=True), stop))
    states = [json.loads(json.dumps(loader.state_dict())) for loader in own]
    resumed = loaders(StatefulDataLoader, job(last="pad", attempt=1))
    for loader, state in zip(resumed, states, strict=True):
        loader.load_state_dict(state)

    expect_one_epoch(before + list(zip(*resumed, strict=True)))


class Pinned(Tensor):
    """A tensor that knows that it was pinned; there is no page-locked memory without a device."""

    @staticmethod
    def __new__(cls, tensor: Tensor) -> "Pinned":
        return tensor.as_subclass(cls)

    def pin_memory(self, device: Any = None) -> Tensor:
        return self + 1


def test_loaders_pin_batches() -> None:
    """The loaders' own function finds the batch's, and leaves the layout as it is."""
    (cell, *_) = one_sampler()
    batch = build_batch(cell, read_tokens)
    marked = Batch(
        tokens=Pinned(batch.tokens), labels=Pinned(batch.labels), positions=Pinned(batch.positions)
    )
    pinned, layout = pin_memory((marked, cell.layout))

    assert layout is cell.layout
    for name in ("tokens", "labels", "positions"):
        assert (getattr(pinned, name) == getattr(batch, name) + 1).all()


def test_a_batch_goes_to_a_device_whole() -> None:
    """All three tensors go, and keep their values."""
    (cell, *_) = one_sampler()
    batch = build_batch(cell, read_tokens)
    moved = batch.to("meta", non_blocking=True)

    for name in ("tokens", "labels", "positions"):
        assert getattr(moved, name).device.type == "meta"
        assert getattr(moved, name).shape == getattr(batch, name).shape
    assert (batch.to("cpu").tokens == batch.tokens).all()


def _empty_step(rank: int) -> Iterator[float]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "cp"))
    pools = SequencePools(mesh, sequences_per_pool=2)
    settings = ModelSettings(vocabulary_size=512)
    sampler = PoolSampler(
        np.full(3, 60),
        pools,
        tokens=64,
        global_batch=2,
        query_heads=settings.heads,
        kv_heads=settings.kv_heads,
        last="pad",
    )
    torch.manual_seed(0)
    model = Transformer(settings, PooledAttention(pools))
    losses = []
    for cell in sampler:
        model.zero_grad(set_to_none=True)
        batch = build_batch(cell, lambda d, b, e: np.arange(b, e))
        loss = loss_sum(model(batch.tokens, batch.positions, cell.layout), batch.labels)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
        empty = not len(cell.segments)
        assert empty == bool((batch.labels == IGNORED_LABEL).all())
        assert not empty or not any(gradient.any() for gradient in gradients)  # type: ignore[union-attr]
        losses.append(float(loss.detach()))
    return losses  # type: ignore[return-value]


@pytest.mark.dist
def test_an_empty_sequence_runs_through_the_model_and_changes_nothing() -> None:
    """Its loss is zero and every parameter gets a gradient of zero, so hooks stay in step."""
    full, padded = run_ranks(_empty_step, 2)

    assert [loss > 0 for loss in full] == [True, True]
    assert [loss > 0 for loss in padded] == [True, False]
