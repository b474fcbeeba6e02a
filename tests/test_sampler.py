"""The sampler: whatever the policy, every step trains on the same documents, each rank its own."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.agent.batch import IGNORED_LABEL, build_batch
from libra.agent.sampler import PoolSampler
from libra.attention.cost import TileCost
from libra.attention.shape import PoolShape
from libra.balancer.policy import HOME_POLICY, Policy

COST = TileCost.from_seconds((1e-5, 1e-7, 1e-7, 1e-9))
POLICY = Policy(version=1, pooling=True, cost=COST.coefficients, cost_scale_bits=COST.scale_bits)
HEADS: dict[str, Any] = {"query_heads": 4, "kv_heads": 2}
LENGTHS = np.random.default_rng(0).lognormal(4, 1.4, 600).astype(np.int64) % 900 + 1


@dataclass(frozen=True)
class Place:
    """The coordinates of one rank, without process groups."""

    shape: PoolShape
    dp_rank: int
    cp_rank: int = 0

    @property
    def pool(self) -> int:
        return self.shape.pool(self.dp_rank)

    @property
    def place(self) -> int:
        return self.shape.place(self.dp_rank)

    @property
    def plane_nodes(self) -> Sequence[int]:
        return (0,) * self.shape.pool_size(self.pool)

    @property
    def pool_nodes(self) -> Sequence[int]:
        return (0,) * self.shape.pool_size(self.pool) * self.shape.cp


def _samplers(dp: int, pool: int, *, global_batch: int = 8, cp: int = 1) -> list[PoolSampler]:
    shape = PoolShape(dp=dp, cp=cp, sequences_per_pool=pool)
    return [
        PoolSampler(
            LENGTHS, Place(shape, rank), tokens=1024, global_batch=global_batch, **HEADS, seed=7
        )
        for rank in range(dp)
    ]


def _documents(samplers: list[PoolSampler], step: int, policy: Policy) -> Counter[tuple[int, ...]]:
    """Count the (document, begin, end) of a step over all ranks and micro-batches."""
    seen: Counter[tuple[int, ...]] = Counter()
    for sampler in samplers:
        for cell in sampler.cells(step, policy):
            segments = cell.segments
            columns = (segments.document, segments.begin, segments.end)
            seen.update(zip(*(column.tolist() for column in columns), strict=True))
    return seen


@given(st.sampled_from([(2, 2), (4, 2), (4, 4), (8, 4), (8, 3), (8, 5)]), st.integers(0, 40))
def test_a_policy_never_changes_what_a_step_trains_on(mesh: tuple[int, int], step: int) -> None:
    """The multiset of documents of a step is the same at home, pooled, and with slow ranks."""
    samplers = _samplers(*mesh)
    slow = Policy(
        version=2,
        pooling=True,
        cost=COST.coefficients,
        cost_scale_bits=COST.scale_bits,
        speeds_permille=(500,) + (1000,) * (mesh[0] - 1),
    )
    home = _documents(samplers, step, HOME_POLICY)

    assert _documents(samplers, step, POLICY) == home
    assert _documents(samplers, step, slow) == home


def test_ranks_of_a_pool_share_one_plan() -> None:
    """All ranks of a pool hold the same lengths and digest, and each its own place."""
    samplers = _samplers(4, 2)
    for step in range(5):
        cells = [sampler.cells(step, POLICY) for sampler in samplers]
        for first in (0, 2):
            for one, two in zip(cells[first], cells[first + 1], strict=True):
                assert one.layout.digest == two.layout.digest
                assert (one.layout.place, two.layout.place) == (0, 1)
                np.testing.assert_array_equal(one.layout.document_lengths, one.segments.lengths)


def test_a_smaller_last_pool_draws_its_part() -> None:
    """Three CP groups in pools of two: each rank draws its pool's cells, together the step's."""
    samplers = _samplers(3, 2, global_batch=6)
    for step in range(samplers[0].steps_per_epoch):
        home = _documents(samplers, step, HOME_POLICY)
        cells = [sampler.cells(step, POLICY) for sampler in samplers]

        assert _documents(samplers, step, POLICY) == home
        assert sum(int((c.segments.lengths - 1).sum()) for own in cells for c in own) == (
            samplers[0].label_tokens(step)
        )
        assert [[len(cell.layout.lengths) for cell in own] for own in cells] == [
            [2, 2],
            [2, 2],
            [1, 1],
        ]
        for first, second, alone in zip(*cells, strict=True):
            assert first.layout.digest == second.layout.digest != alone.layout.digest
            assert [c.layout.place for c in (first, second, alone)] == [0, 1, 0]


def test_a_smaller_pool_knows_its_own_ranks_speeds() -> None:
    """The slow rank of a smaller last pool sheds work onto its own neighbour, not onto others."""
    slow = Policy(
        version=2,
        pooling=True,
        cost=COST.coefficients,
        cost_scale_bits=COST.scale_bits,
        speeds_permille=(1000, 1000, 1000, 1000, 250),
    )
    shape = PoolShape(dp=5, cp=1, sequences_per_pool=3)
    for dp_rank, moves in ((4, True), (0, False)):
        sampler = PoolSampler(
            np.full(100, 1000), Place(shape, dp_rank), tokens=1024, global_batch=5, **HEADS
        )
        (cell,) = sampler.cells(0, slow)
        assert bool(cell.layout.plan.moved) == moves


def test_an_epoch_draws_every_sequence_once() -> None:
    """Steps of an epoch never repeat a segment, and another epoch packs anew."""
    samplers = _samplers(4, 2)
    steps = samplers[0].steps_per_epoch
    first = sum((_documents(samplers, s, POLICY) for s in range(steps)), Counter())
    second = _documents(samplers, steps, POLICY)

    assert max(first.values()) == 1
    assert second != _documents(samplers, 0, POLICY)


def test_placement_evens_pools() -> None:
    """Pools of a pooled step are closer in cost than pools in order of drawing."""

    def spread(policy: Policy) -> float:
        samplers = _samplers(8, 2, global_batch=8)
        ratios = []
        for step in range(20):
            loads = np.array(
                [
                    cell.layout.home_plan.load_ticks.sum()
                    for sampler in samplers[::2]
                    for cell in sampler.cells(step, policy)
                ]
            )
            ratios.append(loads.max() / loads.mean())
        return float(np.mean(ratios))

    assert spread(POLICY) < 0.5 * (spread(HOME_POLICY) - 1) + 1


def test_labels_are_next_tokens_within_documents() -> None:
    """No label crosses a document's end; labels over all ranks are what the sampler counts."""
    shape = PoolShape(dp=2, cp=2, sequences_per_pool=2)
    counted, expected = 0, set()
    for dp_rank in range(2):
        for cp_rank in range(2):
            pools = Place(shape, dp_rank, cp_rank)
            sampler = PoolSampler(LENGTHS, pools, tokens=1024, global_batch=2, **HEADS, seed=7)
            (cell,) = sampler.cells(3, POLICY)
            batch = build_batch(cell, lambda d, b, e: d * 1000 + np.arange(b, e))
            assert len(batch.tokens) == 512
            labelled = batch.labels != IGNORED_LABEL
            assert (batch.labels[labelled] == batch.tokens[labelled] + 1).all()
            counted += int(labelled.sum())
            expected.add(sampler.label_tokens(3))

    assert expected == {counted}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tokens": 0}, "tokens=0"),
        ({"kv_heads": 3}, "kv_heads=3"),
        ({"global_batch": 3}, "global_batch=3"),
        ({"lengths": [1, 0]}, "lengths"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], match: str) -> None:
    """Each error names the setting, its value and what is allowed."""
    shape = PoolShape(dp=2, cp=2, sequences_per_pool=2)
    good: dict[str, object] = {"lengths": LENGTHS, "tokens": 1024, "global_batch": 2, **HEADS}
    with pytest.raises(ValueError, match=match):
        PoolSampler(pools=Place(shape, 0), **{**good, **settings})  # type: ignore[arg-type]


def test_too_few_documents_are_refused() -> None:
    """A step that cannot be filled is an error, not an endless wait."""
    sampler = PoolSampler(
        [5, 5],
        Place(PoolShape(dp=2, cp=1, sequences_per_pool=2), 0),
        tokens=64,
        global_batch=2,
        **HEADS,
    )
    with pytest.raises(ValueError, match="fill only 1 sequences"):
        sampler.cells(0, POLICY)
