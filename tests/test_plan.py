"""Plans conserve work, come out even, cost little to exchange, and are the same everywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.attention.cost import FLOPS_COST, TileCost, tile_features
from libra.attention.lowering import lower, tokens_by_peer
from libra.attention.plan import Plan, PlanSettings, plan_cell
from tests.reference import long_tailed_lengths

cells = st.lists(
    st.lists(st.integers(1, 400), max_size=12).map(lambda x: np.array(x, dtype=np.int64)),
    min_size=1,
    max_size=6,
)
settings = st.builds(
    PlanSettings,
    block_rows=st.sampled_from([1, 16, 64]),
    query_heads_per_kv_head=st.sampled_from([1, 4]),
    min_gain_permille=st.sampled_from([0, 20]),
)
COST = TileCost.from_seconds((2e-5, 1e-7, 1e-7, 1e-9))


def _covered(plan: Plan) -> list[np.ndarray]:
    """Count how often each query row of each sequence is computed, anywhere."""
    counts = []
    for place, lengths in enumerate(plan.lengths):
        starts = np.cumsum(lengths) - lengths
        rows = np.zeros(int(lengths.sum()), dtype=int)
        for start, kept in zip(starts, plan.kept_rows[place], strict=True):
            rows[start : start + kept] += 1
        for move in np.flatnonzero(plan.moves.source == place):
            start = starts[plan.moves.document[move]]
            rows[start + plan.moves.row_begin[move] : start + plan.moves.row_end[move]] += 1
        counts.append(rows)
    return counts


def _loads(plan: Plan, cost: TileCost) -> np.ndarray:
    """Price every bin anew from its kept and moved tiles."""
    loads = np.array([cost.ticks(tile_features(0, kept)).sum() for kept in plan.kept_rows])
    moved = cost.ticks(tile_features(plan.moves.row_begin, plan.moves.row_end))
    np.add.at(loads, plan.moves.target, moved)
    return loads


@given(cells, settings)
def test_every_query_row_is_computed_once(cell: list[np.ndarray], how: PlanSettings) -> None:
    """Cut or moved, no row is lost and none is computed twice; loads say what tiles cost."""
    plan = plan_cell(cell, COST, how)

    assert all((rows == 1).all() for rows in _covered(plan))
    np.testing.assert_array_equal(plan.load_ticks, _loads(plan, COST))
    assert not (plan.moves.source == plan.moves.target).any()


@given(cells, settings)
def test_no_plan_is_worse_than_home(cell: list[np.ndarray], how: PlanSettings) -> None:
    """The slowest bin of a plan never costs more than under plain Ulysses."""
    plan = plan_cell(cell, COST, how)

    assert plan.load_ticks.max() <= plan.home_ticks.max()


@given(cells, settings)
def test_plans_depend_on_their_inputs_alone(cell: list[np.ndarray], how: PlanSettings) -> None:
    """The same lengths give the same plan."""
    plan = plan_cell(cell, COST, how)
    again = plan_cell([part.copy() for part in cell], COST, how)

    for name in ("source", "target", "document", "row_begin", "row_end"):
        np.testing.assert_array_equal(getattr(plan.moves, name), getattr(again.moves, name))


@given(cells, settings)
def test_lowered_counts_agree_between_ranks(cell: list[np.ndarray], how: PlanSettings) -> None:
    """What one rank sends is what the other expects: a mismatch would abort the job."""
    plan = plan_cell(cell, COST, how)
    lowered = [lower(plan, place) for place in range(len(cell))]
    for source, sender in enumerate(lowered):
        for target, receiver in enumerate(lowered):
            for column in ("query_tokens", "row_end"):
                sent = tokens_by_peer(sender.sent_to, getattr(sender.sent, column))
                due = tokens_by_peer(receiver.received_from, getattr(receiver.received, column))
                assert sent[target] == due[source]
        np.testing.assert_array_equal(
            COST.ticks(sender.local.features()).sum()
            + COST.ticks(sender.received.features()).sum(),
            plan.load_ticks[source],
        )


@pytest.mark.parametrize("bins", [2, 4, 8])
def test_long_tailed_pools_come_out_even(bins: int) -> None:
    """At 32 Ki tokens the slowest bin is within 2 % of the mean; P - 1 moves are typical."""
    rng = np.random.default_rng(bins)
    worst, moves = [], []
    for _ in range(50):
        cell = [np.array(long_tailed_lengths(rng, 32768, 800)) for _ in range(bins)]
        plan = plan_cell(cell, FLOPS_COST, PlanSettings(block_rows=64))
        worst.append(plan.load_ticks.max() / plan.load_ticks.mean())
        moves.append(len(plan.moves))

    assert max(worst) < 1.02
    assert np.mean(moves) < 1.5 * bins


def test_even_lengths_stay_home() -> None:
    """Where nothing is to be gained, nothing moves."""
    cell = [np.array([100, 200, 50]), np.array([200, 50, 101])]

    assert len(plan_cell(cell, COST, PlanSettings()).moves) == 0


def test_a_slow_bin_gets_less() -> None:
    """With one bin at half speed, both finish together."""
    cell = [np.full(64, 64), np.full(64, 64)]
    plan = plan_cell(cell, COST, PlanSettings(block_rows=1), (1000, 500))

    times = plan.load_ticks * 1000 / np.array([1000, 500])
    assert times.max() < 1.02 * times.mean()


def test_empty_and_single_sequences_are_plans() -> None:
    """A cell may hold sequences of padding only, or one sequence."""
    nothing = np.array([], dtype=np.int64)

    assert len(plan_cell([nothing, nothing], COST, PlanSettings()).moves) == 0
    assert len(plan_cell([np.array([8])], COST, PlanSettings()).moves) == 0
    plan = plan_cell([np.array([256]), nothing], FLOPS_COST, PlanSettings(block_rows=16))
    assert plan.load_ticks.max() < 1.1 * plan.load_ticks.mean()


@pytest.mark.parametrize("bad", [0, -3])
def test_lengths_below_one_are_refused(bad: int) -> None:
    """A document of no tokens is an error that names its length."""
    with pytest.raises(ValueError, match=str(bad)):
        plan_cell([np.array([4, bad])], COST, PlanSettings())


def test_bad_settings_are_refused() -> None:
    """Settings name themselves, their value and what is allowed."""
    with pytest.raises(ValueError, match=r"block_rows=0: must be at least 1"):
        PlanSettings(block_rows=0)
    with pytest.raises(ValueError, match=r"tolerance_permille=1001"):
        PlanSettings(tolerance_permille=1001)
    with pytest.raises(ValueError, match=r"speeds_permille"):
        plan_cell([np.array([4])], COST, PlanSettings(), (1000, 1000))
