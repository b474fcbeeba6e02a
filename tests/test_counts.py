"""Ranks have equal counts, whatever the lengths, mesh and policy, and build every batch they get.

Ranks with unequal numbers of micro-batches wait for each other for ever, and so do ranks that
disagree on who shares a cell; a micro-batch of no document must be as good as any other.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from libra.agent.batch import IGNORED_LABEL, Batch, build_batch
from libra.agent.cell import Cell
from libra.agent.sampler import PoolSampler
from libra.attention.cost import TileCost
from libra.attention.shape import PoolShape, token_range
from libra.balancer.policy import HOME_POLICY, Policy
from tests.coordinates import POLICY, samplers


@dataclass(frozen=True, kw_only=True)
class Job:
    """A mesh, and all that decides what its ranks are given.

    Attributes:
        heads: query and kv heads.
        micro_batches: of a step on each rank.
    """

    shape: PoolShape
    heads: tuple[int, int]
    lengths: tuple[int, ...]
    tokens: int
    micro_batches: int
    packing: str
    last: str
    meeting: str
    policy: Policy

    def ranks(self) -> list[PoolSampler]:
        """Return the samplers of all ranks, by CP group and within it."""
        shape, store = self.shape, HashStore()
        columns = [
            samplers(
                shape.dp,
                shape.sequences_per_pool,
                cp=shape.cp,
                cp_rank=cp_rank,
                largest=shape.largest_pool,
                store=store,
                lengths=list(self.lengths),
                tokens=self.tokens,
                global_batch=self.micro_batches * shape.dp,
                packing=self.packing,
                last=self.last,
                meeting=self.meeting,
                policy=self.policy,
                query_heads=self.heads[0],
                kv_heads=self.heads[1],
            )
            for cp_rank in range(shape.cp)
        ]
        return list(chain.from_iterable(zip(*columns, strict=True)))


@st.composite
def shapes(draw: st.DrawFn) -> PoolShape:
    """Any mesh of a few ranks, pools that do not divide it and elastic ones among them."""
    size = draw(st.integers(1, 3))
    dp = draw(st.integers(size, 7))
    fitting = [0, *(size << doublings for doublings in (1, 2) if size << doublings <= dp)]
    return PoolShape(
        dp=dp,
        cp=draw(st.integers(1, 3)),
        sequences_per_pool=size,
        largest_pool=draw(st.sampled_from(fitting[::-1])),
    )


@st.composite
def policies(draw: st.DrawFn, ranks: int) -> Policy:
    if draw(st.sampled_from([False, False, False, True])):
        return HOME_POLICY
    seconds = st.sampled_from([0.0, 1e-9, 1e-7, 1e-5])
    tiles, queries, keys, blocks, longs = draw(st.tuples(*[seconds] * 5))
    cost = TileCost.from_seconds([tiles, queries, keys, 1e-9, blocks, longs])
    return Policy(
        version=1,
        pooling=True,
        cost=cost.coefficients,
        cost_scale_bits=cost.scale_bits,
        speeds_permille=draw(st.just(()) | st.tuples(*[st.integers(200, 3000)] * ranks)),
        tolerance_permille=draw(st.sampled_from([0, 8])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Few documents or many, alike, mixed or one of them huge; sequences of one token too."""
    shape = draw(shapes())
    tokens = draw(st.integers(1, 8) | st.integers(1, 200))
    length = draw(
        st.sampled_from(
            [
                st.integers(1, tokens),
                st.integers(1, 3 * tokens),
                st.sampled_from([1, tokens]),
                st.sampled_from([*[max(1, tokens // 4)] * 19, tokens]),
            ]
        )
    )
    least = draw(st.sampled_from([1, 20, 60]))
    return Job(
        shape=shape,
        heads=draw(st.sampled_from([(4, 2), (6, 6), (5, 1)])),
        lengths=tuple(draw(st.lists(length, min_size=least, max_size=60))),
        tokens=tokens,
        micro_batches=draw(st.integers(1, 3)),
        packing=draw(st.sampled_from(["best_fit", "stream"])),
        last=draw(st.sampled_from(["pad", "pad", "drop"])),
        meeting=draw(st.sampled_from(["micro_batch", "step"])),
        policy=draw(policies(shape.dp * shape.cp)),
    )


# One sequence of a long document among those of short ones: its pool is larger for once.
ELASTIC = Job(
    shape=PoolShape(dp=9, cp=2, sequences_per_pool=2, largest_pool=8),
    heads=(4, 2),
    lengths=(200,) + (5,) * 800,
    tokens=200,
    micro_batches=2,
    packing="best_fit",
    last="pad",
    meeting="micro_batch",
    policy=POLICY,
)


def refusal(sampler: PoolSampler) -> str:
    """Return why a rank cannot begin, empty where it can."""
    try:
        return "" if sampler.steps_per_epoch else "no step"
    except ValueError as refused:
        return str(refused)


def epoch(job: Job) -> list[list[Cell]]:
    """Return what every rank is given in an epoch: nothing where all say that it fills no step."""
    ranks = job.ranks()
    said = {refusal(sampler) for sampler in ranks}
    assert len(said) == 1
    assert not said.pop() or job.last == "drop"
    return [list(sampler) if not refusal(sampler) else [] for sampler in ranks]


@given(jobs())
@example(ELASTIC)
def test_every_rank_has_the_same_micro_batches(job: Job) -> None:
    """In every step as many, in the same order, and as many as a loader is told to expect."""
    given = epoch(job)
    steps = len(given[0]) // job.micro_batches
    expected = [(step, at) for step in range(steps) for at in range(job.micro_batches)]

    for own in given:
        assert [(cell.step, cell.micro_batch) for cell in own] == expected
    assert steps or job.last == "drop"
    for sampler in job.ranks() if steps else []:
        assert len(sampler) == len(expected)


def sharers(job: Job, rank: int, cell: Cell) -> list[int]:
    """Return the ranks that exchange tiles with a rank in a micro-batch, itself included."""
    cp = job.shape.cp
    block = job.shape.block(rank // cp, len(cell.lengths))
    columns = [rank % cp] if cell.heads.even else range(cp)
    return [dp_rank * cp + column for dp_rank in block for column in columns]


@settings(max_examples=40)
@given(jobs())
@example(ELASTIC)
def test_ranks_that_share_a_cell_agree_on_it(job: Job) -> None:
    """Who is in it, what it holds and how it is planned; each has a place of its own."""
    for micro_batch in zip(*epoch(job), strict=True):
        for rank, cell in enumerate(micro_batch):
            peers = [micro_batch[other] for other in sharers(job, rank, cell)]
            own = job.shape.block(rank // job.shape.cp, len(cell.lengths))

            assert {peer.layout.digest for peer in peers} == {cell.layout.digest}
            assert own.start + cell.place == rank // job.shape.cp
            assert cell.segments.lengths.tolist() == cell.lengths[cell.place].tolist()


def test_the_example_of_larger_pools_has_some() -> None:
    """The examples above cover cells of more CP groups than a pool's, and of fewer."""
    assert {len(cell.lengths) for own in epoch(ELASTIC) for cell in own} >= {1, 2, 8}


def read_tokens(document: int, begin: int, end: int) -> Any:
    """Tokens that tell where they come from; none of them is 0, as padding is."""
    return document * 1000 + np.arange(begin, end) + 1


def joined(shards: list[Batch]) -> tuple[list[int], list[int]]:
    """Return the tokens and labels of a CP group's sequence."""
    return (
        list(chain.from_iterable(batch.tokens.tolist() for batch in shards)),
        list(chain.from_iterable(batch.labels.tolist() for batch in shards)),
    )


@settings(max_examples=40)
@given(jobs())
@example(ELASTIC)
def test_every_batch_can_be_built(job: Job) -> None:
    """Empty sequences and shards too; the ranks of a CP group hold one sequence, cut in shards.

    Labels of all ranks together are as many as the sampler says, who divides the loss by them.
    """
    cp, tokens = job.shape.cp, job.tokens
    labels: dict[int, int] = {}
    for micro_batch in zip(*epoch(job), strict=True):
        batches = [build_batch(cell, read_tokens) for cell in micro_batch]
        for first in range(0, len(batches), cp):
            cell, shards = micro_batch[first], batches[first : first + cp]
            part = cell.segments
            whole, wanted = joined(shards)
            held = [
                token
                for segment in zip(part.document, part.begin, part.end, strict=True)
                for token in read_tokens(*segment).tolist()
            ]
            assert [len(batch.labels) for batch in shards] == [
                end - begin for begin, end in (token_range(tokens, at, cp) for at in range(cp))
            ]
            assert whole == held + [0] * (tokens - len(held))
            own = sum(label != IGNORED_LABEL for label in wanted)
            assert own == len(held) - len(part)
            labels[cell.step] = labels.get(cell.step, 0) + own
    sampler = job.ranks()[0]
    assert labels == {step: sampler.label_tokens(step) for step in labels}


@settings(max_examples=15)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 4), st.sampled_from(["drop", "pad"]))
@example(9, 4, 1, "pad")
@example(9, 4, 1, "drop")
@example(249, 2, 1, "pad")
@example(249, 2, 1, "drop")
@example(249, 8, 2, "pad")
@example(3, 4, 1, "pad")
@example(3, 4, 1, "drop")
def test_any_number_of_sequences_meets_any_number_of_ranks(
    sequences: int, dp: int, micro_batches: int, last: str
) -> None:
    """An epoch that steps do not divide is cut short or filled up, counted; no step is empty.

    One that does not fill a step is an error that names the remedy, on every rank.
    """
    batch = dp * micro_batches
    ranks = samplers(
        dp, 1, lengths=np.full(sequences, 8), tokens=8, global_batch=batch, last=last, policy=POLICY
    )
    full, rest = divmod(sequences, batch)
    if last == "drop" and not full:
        for sampler in ranks:
            with pytest.raises(ValueError, match=rf"fill only {sequences} seq.* last='pad'"):
                next(iter(sampler))
        return
    steps = full + (last == "pad" and rest > 0)
    given = [list(sampler) for sampler in ranks]
    held = [[len(cell.segments) for cell in own] for own in given]

    assert [len(own) for own in given] == [steps * micro_batches] * dp
    for sampler in ranks:
        assert sampler.dropped_sequences == (rest if last == "drop" else 0)
        assert sampler.padded_sequences == (batch - rest if last == "pad" and rest else 0)
    assert sum(map(sum, held)) == sequences - ranks[0].dropped_sequences
    by_step = np.array(held).reshape(dp, steps, micro_batches).sum(axis=(0, 2))
    assert by_step.tolist() == [batch] * full + [rest] * (steps - full)


@pytest.mark.parametrize("global_batch", [9, 249, 3, 1])
def test_a_step_that_ranks_do_not_divide_is_refused(global_batch: int) -> None:
    """No rank gets one sequence more than another: the error says what would fit."""
    with pytest.raises(ValueError, match=rf"global_batch={global_batch}: .* multiple of dp=4"):
        samplers(4, 2, global_batch=global_batch)
