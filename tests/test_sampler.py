"""The sampler: whatever the policy, every step trains on the same documents, each rank its own."""

import logging
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

import libra.agent.placing as placing_module
from libra.agent.batch import IGNORED_LABEL, build_batch
from libra.agent.sampler import PoolSampler
from libra.attention.shape import PoolShape
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.step_placement import StepPlacement, place_step
from tests.coordinates import (
    COST,
    HEADS,
    LENGTHS,
    POLICY,
    Place,
    documents,
    documents_of_step,
    samplers,
)


def speeds(*permille: int) -> Policy:
    """A pooling policy for ranks of these speeds."""
    return Policy(
        version=2,
        pooling=True,
        cost=COST.coefficients,
        cost_scale_bits=COST.scale_bits,
        speeds_permille=permille,
    )


@given(st.sampled_from([(2, 2), (4, 2), (4, 4), (8, 4), (8, 3), (8, 5)]), st.integers(0, 40))
def test_a_policy_never_changes_what_a_step_trains_on(mesh: tuple[int, int], step: int) -> None:
    """The multiset of documents of a step is the same at home, pooled, and with slow ranks."""
    ranks = samplers(*mesh)
    home = documents_of_step(ranks, step, HOME_POLICY)

    assert documents_of_step(ranks, step, POLICY) == home
    assert documents_of_step(ranks, step, speeds(500, *(1000,) * (mesh[0] - 1))) == home


def test_ranks_of_a_pool_share_one_plan() -> None:
    """All ranks of a pool hold the same lengths and digest, and each its own place."""
    ranks = samplers(4, 2)
    for step in range(5):
        cells = [sampler.cells(step, POLICY) for sampler in ranks]
        for first in (0, 2):
            for one, two in zip(cells[first], cells[first + 1], strict=True):
                assert one.layout.digest == two.layout.digest
                assert (one.layout.place, two.layout.place) == (0, 1)
                np.testing.assert_array_equal(one.layout.document_lengths, one.segments.lengths)


def test_a_smaller_last_pool_draws_its_part() -> None:
    """Three CP groups in pools of two: each rank draws its pool's cells, together the step's."""
    ranks = samplers(3, 2, global_batch=6)
    for step in range(ranks[0].steps_per_epoch):
        home = documents_of_step(ranks, step, HOME_POLICY)
        cells = [sampler.cells(step, POLICY) for sampler in ranks]

        assert documents_of_step(ranks, step, POLICY) == home
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
    shape = PoolShape(dp=5, cp=1, sequences_per_pool=3)
    for dp_rank, moves in ((4, True), (0, False)):
        sampler = PoolSampler(
            np.full(100, 1000), Place(shape, dp_rank), tokens=1024, global_batch=5, **HEADS
        )
        (cell,) = sampler.cells(0, speeds(1000, 1000, 1000, 1000, 250))
        assert bool(cell.layout.plan.moved) == moves


def test_speeds_of_another_number_of_ranks_count_for_nothing() -> None:
    """After a change of size a policy's speeds are nobody's; placements and plans do without."""
    ranks = samplers(4, 2)
    old = speeds(300, 1000)
    cells = [cell for sampler in ranks for cell in sampler.cells(0, old)]
    even = [cell for sampler in ranks for cell in sampler.cells(0, POLICY)]

    assert {cell.speeds_permille for cell in cells} == {()}
    assert documents(cells[:2]) == documents(even[:2])


def elastic(costs: Any, shape: PoolShape, **_: Any) -> StepPlacement:
    """Four CP groups in one cell in every other micro-batch, in cells of two in the rest."""
    batches = len(costs) // shape.dp
    return StepPlacement(
        slots=np.arange(len(costs))[::-1].reshape(batches, shape.dp),
        sizes=tuple((4,) if batch % 2 else (2, 2) for batch in range(batches)),
        pooling=True,
        placement=None,
        skew=1.0,
        says="by hand",
    )


def test_a_step_may_use_larger_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cell of more CP groups a rank has its place, its nodes and speeds among all of them."""
    monkeypatch.setattr(placing_module, "place_step", elastic)
    shape = PoolShape(dp=4, cp=2, sequences_per_pool=2, largest_pool=4)
    policy = speeds(*range(1000, 1008))
    for dp_rank in range(4):
        pools = Place(shape, dp_rank, 1)
        sampler = PoolSampler(LENGTHS, pools, tokens=1024, global_batch=8, **HEADS)
        pair, four = sampler.cells(0, policy)
        own = slice(0, 2) if dp_rank < 2 else slice(2, 4)

        assert [pair.place, four.place] == [dp_rank % 2, dp_rank]
        assert (len(pair.nodes), len(four.nodes)) == (2, 4)
        assert four.speeds_permille == (1001, 1003, 1005, 1007)
        assert list(pair.speeds_permille) == list(four.speeds_permille)[own]
        np.testing.assert_array_equal(four.layout.document_lengths, four.segments.lengths)


def test_where_placement_alone_evens_the_cells_stay_home(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooling policy moves nothing then, and the job's log says why, once."""

    def home(costs: Any, shape: PoolShape, **_: Any) -> StepPlacement:
        return StepPlacement(
            slots=np.arange(len(costs)).reshape(-1, shape.dp),
            sizes=((2, 2),) * (len(costs) // shape.dp),
            pooling=False,
            placement=None,
            skew=1.0,
            says="all steps are even",
        )

    monkeypatch.setattr(placing_module, "place_step", home)
    with caplog.at_level(logging.INFO, logger="libra"):
        for sampler in samplers(4, 2):
            for step in range(3):
                assert not any(cell.layout.plan.moved for cell in sampler.cells(step, POLICY))

    assert [record.message for record in caplog.records] == [
        "Placement alone evens the steps: all steps are even"
    ]


def test_a_placement_is_made_once_for_a_step_and_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells, and whoever asks why, get the very placement; another policy gets its own."""
    (sampler, *_) = samplers(4, 2)
    calls: list[int] = []

    def counted(costs: Any, *rest: Any, **more: Any) -> StepPlacement:
        calls.append(len(costs))
        return place_step(costs, *rest, **more)

    monkeypatch.setattr(placing_module, "place_step", counted)
    placement = sampler.placement(3, POLICY)
    sampler.cells(3, POLICY)

    assert sampler.placement(3, POLICY) is placement
    assert calls == [8]
    assert placement.says
    assert sampler.placement(3, HOME_POLICY).slots.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sampler.placement(3, speeds(500, 1000, 1000, 1000)) is not placement
    assert len(calls) == 2


def test_costs_are_the_sums_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence costs what its documents do apart, and an empty one nothing."""
    seen: list[list[int]] = []

    def counted(costs: Any, *rest: Any, **more: Any) -> StepPlacement:
        seen.append(costs.tolist())
        return place_step(costs, *rest, **more)

    monkeypatch.setattr(placing_module, "place_step", counted)
    (sampler, *_) = samplers(2, 2, lengths=[700, 900, 1000, 20, 20, 20], global_batch=6, last="pad")
    home = sampler.cells(0, HOME_POLICY)
    lengths = [part.tolist() for cell in home for part in cell.lengths]
    sampler.cells(0, POLICY)

    assert [] in lengths
    assert seen == [[sum(COST.price_one(0, length) for length in part) for part in lengths]]


def test_placement_evens_pools() -> None:
    """Pools of a pooled step are closer in cost than pools in order of drawing."""

    def spread(policy: Policy) -> float:
        ranks = samplers(8, 2, global_batch=8)
        ratios = []
        for step in range(20):
            loads = np.array(
                [
                    cell.layout.home_plan.load_ticks.sum()
                    for sampler in ranks[::2]
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


def test_a_cell_travels_small_and_is_planned_where_it_arrives() -> None:
    """Drawing plans nothing; a cell's copy plans the same layout, which its source need not."""
    (sampler, *_) = samplers(4, 4)
    cell = next(iter(sampler))
    sent = pickle.dumps(cell)
    copy = pickle.loads(sent)

    assert "layout" not in vars(cell)
    assert len(sent) < 3000 + 8 * (sum(map(len, cell.lengths)) + 3 * len(cell.segments))
    assert copy.layout.digest == cell.layout.digest
    assert copy.layout is copy.layout


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tokens": 0}, "tokens=0"),
        ({"tokens": 1 << 21}, r"tokens=2097152: must be in 1\.\.1048576"),
        ({"kv_heads": 3}, "kv_heads=3"),
        ({"global_batch": 3}, "global_batch=3: must be a multiple of dp=2"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"lengths": [1, 0]}, "lengths"),
        ({"lengths": [1.5]}, "lengths"),
        ({"lengths": []}, "lengths"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"tokens": "16"}, "tokens='16'"),
        ({"global_batch": 4.0}, r"global_batch=4\.0"),
        ({"attempt": 1.5}, r"attempt=1\.5"),
        ({"timeout_s": float("inf")}, "timeout_s=inf"),
        ({"timeout_s": "1 s"}, "timeout_s='1 s'"),
        ({"packing": "best"}, "packing='best': must be 'best_fit' or 'stream'"),
        ({"last": "keep"}, "last='keep': must be 'drop' or 'pad'"),
        ({"meeting": "epoch"}, "meeting='epoch': must be 'micro_batch' or 'step'"),
        ({"attempt": -1}, "attempt=-1"),
        ({"timeout_s": 0}, "timeout_s=0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], match: str) -> None:
    """Each error names the setting, its value and what is allowed."""
    shape = PoolShape(dp=2, cp=2, sequences_per_pool=2)
    good: dict[str, object] = {"lengths": LENGTHS, "tokens": 1024, "global_batch": 2, **HEADS}
    with pytest.raises(ValueError, match=match):
        PoolSampler(pools=Place(shape, 0), **{**good, **settings})  # type: ignore[arg-type]


def test_epochs_and_steps_begin_at_zero() -> None:
    """No epoch or step before the first can be asked for."""
    (sampler, *_) = samplers(2, 2)
    with pytest.raises(ValueError, match="epoch=-1"):
        sampler.set_epoch(-1)
    with pytest.raises(ValueError, match="step=-1"):
        sampler.cells(-1, POLICY)
    with pytest.raises(ValueError, match=r"epoch=1\.5"):
        sampler.set_epoch(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"step=1\.5"):
        sampler.state_dict(step=1.5)  # type: ignore[arg-type]


def test_too_few_documents_are_refused() -> None:
    """A step that cannot be filled is an error that tells the remedy, not an endless wait."""
    (sampler, *_) = samplers(2, 2, lengths=[5, 5], tokens=64, global_batch=2)
    with pytest.raises(ValueError, match=r"fill only 1 sequences .* last='pad'"):
        sampler.cells(0, POLICY)

    (sampler, *_) = samplers(2, 2, lengths=[5, 5], tokens=64, global_batch=2, last="pad")
    assert len(sampler.cells(0, POLICY)) == sampler.padded_sequences == 1


def test_samplers_of_other_names_share_a_store() -> None:
    """A validation sampler beside the training one decides its own steps; one name is refused."""
    store = HashStore()
    (train,) = samplers(1, 1, store=store)
    (validate,) = samplers(1, 1, store=store, name="validate", seed=8, policy=HOME_POLICY)
    (unnamed,) = samplers(1, 1, store=store, seed=8)

    assert next(iter(train)).policy_version == POLICY.version
    assert next(iter(validate)).policy_version == HOME_POLICY.version
    with pytest.raises(RuntimeError, match="a second sampler needs a name of its own"):
        next(iter(unnamed))


def test_a_restarted_job_is_a_new_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``attempt`` the launcher's count of restarts is it, so steps are decided anew."""
    store = HashStore()
    (before,) = samplers(1, 1, store=store)
    assert next(iter(before)).policy_version == POLICY.version

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (after,) = samplers(1, 1, store=store, policy=HOME_POLICY)
    assert next(iter(after)).policy_version == HOME_POLICY.version
    with pytest.raises(RuntimeError, match="attempt"):
        before.agree(1)


def test_ranks_that_meet_once_a_step_wait_for_no_pool_until_tiles_move() -> None:
    """Cells are alone where nothing moves and ranks meet once a step, and nowhere else."""
    many = {"dp": 2, "pool": 2, "global_batch": 64, "lengths": np.full(2000, 97)}
    for meeting, policy, expected in [
        ("step", POLICY, True),
        ("step", HOME_POLICY, True),
        ("micro_batch", POLICY, False),
        ("micro_batch", HOME_POLICY, False),
    ]:
        ranks = samplers(**many, meeting=meeting)  # type: ignore[arg-type]
        cells = [cell for sampler in ranks for cell in sampler.cells(0, policy)]
        assert {cell.layout.alone for cell in cells} == {expected}

    uneven = samplers(2, 2, global_batch=2, meeting="step")
    placed = [sampler.placement(0, POLICY).pooling for sampler in uneven]
    alone = [cell.layout.alone for sampler in uneven for cell in sampler.cells(0, POLICY)]
    assert placed == [True, True]
    assert alone == [False, False]
