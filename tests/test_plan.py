"""Plans conserve work, come out even, respect their limits, and are the same everywhere."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.plan import PlanSettings, plan_cell
from tests.cells import MEASURED_COST, Case, cases, covered, rows_of
from tests.reference import long_tailed_lengths

ONE_HEAD = HeadSplit(query_heads=1, kv_heads=1)


@given(cases())
def test_every_row_of_every_head_is_computed_once(case: Case) -> None:
    """Cut or moved, no query row of any head is lost and none is computed twice."""
    plan = case.plan()

    for own in range(plan.bins):
        assert all((counts == 1).all() for counts in covered(plan, own))
    assert not (plan.moves.source == plan.moves.target).any()


@given(cases())
def test_loads_are_the_price_of_the_tiles(case: Case) -> None:
    """What a plan says each bin costs is what its tiles cost, kept and received."""
    plan = case.plan()

    loads = np.array([plan.kept(own).load_ticks(case.cost).sum() for own in range(plan.bins)])
    np.add.at(loads, plan.moves.target, plan.moves.tiles.load_ticks(case.cost))
    np.testing.assert_array_equal(plan.load_ticks, loads)


@given(cases())
def test_no_plan_is_worse_than_home(case: Case) -> None:
    """The slowest bin of a plan never takes longer than under plain Ulysses."""
    plan = case.plan()
    speeds = np.array(case.speeds or [1000] * plan.bins)

    assert (plan.load_ticks / speeds).max() <= (plan.home_ticks / speeds).max()


@given(cases())
def test_no_bin_holds_more_than_its_cap(case: Case) -> None:
    """Queries and keys held, own and received, never pass the cap, whatever the lengths."""
    plan = case.plan()
    held = np.array(
        [
            plan.home(own).query_vectors.sum() + plan.home(own).key_vectors.sum()
            for own in range(plan.bins)
        ]
    )
    cap = held.max(initial=0) * case.settings.memory_permille // 1000
    received = plan.moves.tiles.query_vectors + plan.moves.tiles.key_vectors
    np.add.at(held, plan.moves.target, received)

    assert (held <= cap).all()


@given(cases())
def test_plans_depend_on_their_inputs_alone(case: Case) -> None:
    """The same inputs give the same plan, to the last row."""
    plan, again = case.plan(), case.plan()

    for name in ("source", "target", "wave"):
        np.testing.assert_array_equal(getattr(plan.moves, name), getattr(again.moves, name))
    assert rows_of(plan.moves.tiles) == rows_of(again.moves.tiles)


@given(cases())
def test_cuts_fall_on_blocks_and_between_kv_heads(case: Case) -> None:
    """A document is cut at multiples of the block only, and no group of heads is torn apart."""
    plan = case.plan()
    tiles = plan.moves.tiles

    assert (tiles.row_begin % case.settings.block_rows == 0).all()
    for own in range(plan.bins):
        runs = plan.runs[own % len(plan.runs)]
        for index in np.flatnonzero(plan.moves.source == own):
            tile = tiles[np.array([index])]
            (run,) = [run for run in runs if run.kv_begin <= tile.kv_begin[0] < run.kv_end]
            assert tile.query_heads[0] == tile.kv_heads[0] * run.group


def _cells(bins: int, count: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(bins)
    return [
        [np.array(long_tailed_lengths(rng, 32768, 800)) for _ in range(bins)] for _ in range(count)
    ]


@pytest.mark.parametrize("bins", [2, 4, 8, 16])
@pytest.mark.parametrize(
    "heads",
    [
        HeadSplit(query_heads=8, kv_heads=2),
        HeadSplit(query_heads=32, kv_heads=8, cp=8),
        HeadSplit(query_heads=5, kv_heads=5, cp=2),
        HeadSplit(query_heads=3, kv_heads=1, cp=4),
    ],
    ids=["planes, two kv heads", "planes, one kv head", "five heads on two", "three on four"],
)
def test_long_tailed_pools_come_out_even(bins: int, heads: HeadSplit) -> None:
    """At 32 Ki tokens the slowest bin is within 2 % of the mean, in about a move for each bin."""
    how = PlanSettings(block_rows=64, memory_permille=4000)
    plans = [plan_cell(cell, heads, FLOPS_COST, how) for cell in _cells(bins, 20)]

    assert max(plan.load_ticks.max() / plan.load_ticks.mean() for plan in plans) < 1.02
    assert {plan.limit for plan in plans} <= {"tolerance", "gain"}
    # Waves cut a move of several heads in two.
    pieces = [plan_cell(cell, heads, FLOPS_COST, replace(how, waves=1)) for cell in _cells(bins, 5)]
    assert np.mean([len(plan.moves) for plan in pieces]) < 1.6 * plans[0].bins


def test_the_memory_cap_wins_and_says_so() -> None:
    """Where evenness would need more memory than allowed, the plan is uneven and tells why."""
    cell = [np.array([8192]), np.full(256, 32)]
    how = PlanSettings(block_rows=64, memory_permille=3000)
    free = plan_cell(cell, ONE_HEAD, FLOPS_COST, how)
    capped = plan_cell(cell, ONE_HEAD, FLOPS_COST, replace(how, memory_permille=1100))

    assert free.limit == "tolerance"
    assert free.load_ticks.max() < 1.02 * free.load_ticks.mean()
    assert capped.limit == "memory"
    assert capped.load_ticks.max() > free.load_ticks.max()


def test_blocks_bound_evenness_and_the_plan_says_so() -> None:
    """Blocks too coarse for the tolerance leave less than a block too much, and are named."""
    cell = [np.array([1024]), np.array([8])]
    plan = plan_cell(cell, ONE_HEAD, FLOPS_COST, PlanSettings(block_rows=512, memory_permille=4000))

    assert plan.limit == "granularity"
    # Two blocks: the later costs three quarters of the whole.
    assert plan.load_ticks.max() < 0.76 * plan.home_ticks.max()


def test_a_piece_that_continues_another_is_one_tile() -> None:
    """Rows given in two goes to the same bin travel with the keys of one."""
    cell = [np.array([256]), np.array([], dtype=np.int64)]
    plan = plan_cell(cell, ONE_HEAD, FLOPS_COST, PlanSettings(block_rows=16))

    # What fits under the share are four blocks; the fifth makes the slower of both faster.
    assert rows_of(plan.moves.tiles) == [(0, 0, 1, 176, 256)]


def test_the_same_node_is_given_to_first() -> None:
    """Of two bins with equal room, the one on the source's node gets the surplus."""
    cell = [np.array([4096]), np.full(8, 64), np.full(8, 64)]
    how = PlanSettings(memory_permille=4000, tolerance_permille=1000)
    for near in (1, 2):
        nodes = [0, 0 if near == 1 else 1, 0 if near == 2 else 1]
        plan = plan_cell(cell, ONE_HEAD, FLOPS_COST, how, nodes=nodes)
        assert plan.moves.target.tolist() == [near]


def test_thousands_of_short_documents_are_moved_in_bulk() -> None:
    """A sequence of many middling documents against one of tiny ones still comes out even."""
    cell = [np.full(1024, 64), np.full(8192, 8)]
    plan = plan_cell(cell, ONE_HEAD, FLOPS_COST, PlanSettings(memory_permille=2000))

    assert plan.load_ticks.max() < 1.02 * plan.load_ticks.mean()
    assert set(plan.moves.wave.tolist()) == {0, 1}


def test_even_lengths_stay_home() -> None:
    """Where nothing is to be gained, nothing moves."""
    cell = [np.array([100, 200, 50]), np.array([200, 50, 101])]
    plan = plan_cell(cell, ONE_HEAD, MEASURED_COST, PlanSettings())

    assert len(plan.moves) == 0
    assert plan.limit == "gain"


def test_a_slow_bin_gets_less() -> None:
    """With one bin at half speed, both finish together."""
    cell = [np.full(64, 64), np.full(64, 64)]
    plan = plan_cell(
        cell, ONE_HEAD, MEASURED_COST, PlanSettings(block_rows=1), speeds_permille=(1000, 500)
    )

    times = plan.load_ticks * 1000 / np.array([1000, 500])
    assert times.max() < 1.02 * times.mean()


def test_empty_and_single_sequences_are_plans() -> None:
    """A cell may hold sequences of padding only, or one sequence."""
    nothing = np.array([], dtype=np.int64)

    assert len(plan_cell([nothing, nothing], ONE_HEAD, FLOPS_COST, PlanSettings()).moves) == 0
    assert len(plan_cell([np.array([8])], ONE_HEAD, FLOPS_COST, PlanSettings()).moves) == 0
    plan = plan_cell([np.array([256]), nothing], ONE_HEAD, FLOPS_COST, PlanSettings(block_rows=16))
    assert plan.load_ticks.max() < 1.1 * plan.load_ticks.mean()


@pytest.mark.parametrize("bad", [0, -3])
def test_lengths_below_one_are_refused(bad: int) -> None:
    """A document of no tokens is an error that names its length."""
    with pytest.raises(ValueError, match=str(bad)):
        plan_cell([np.array([4, bad])], ONE_HEAD, FLOPS_COST, PlanSettings())


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("block_rows", 0, "at least 1"),
        ("tolerance_permille", 1001, "in 0..1000"),
        ("min_gain_permille", -1, "in 0..1000"),
        ("memory_permille", 999, "at least 1000"),
        ("waves", 17, "in 1..16"),
    ],
)
def test_bad_settings_are_refused(setting: str, value: int, allowed: str) -> None:
    """Settings name themselves, their value and what is allowed."""
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(ValueError, match=f"{setting}={value}: must be {allowed}"):
        PlanSettings(**settings)


def test_speeds_and_nodes_must_be_one_for_each_bin() -> None:
    """A list of the wrong length, or a speed of nothing, is an error that names it."""
    cell = [np.array([4])]
    with pytest.raises(ValueError, match=r"speeds_permille=\[1000, 1000\]"):
        plan_cell(cell, ONE_HEAD, FLOPS_COST, PlanSettings(), speeds_permille=(1000, 1000))
    with pytest.raises(ValueError, match=r"speeds_permille=\[0\]"):
        plan_cell(cell, ONE_HEAD, FLOPS_COST, PlanSettings(), speeds_permille=(0,))
    with pytest.raises(ValueError, match=r"nodes=\[0, 1\]"):
        plan_cell(cell, ONE_HEAD, FLOPS_COST, PlanSettings(), nodes=(0, 1))
