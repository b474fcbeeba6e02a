"""The diagnosis names what was planted, with what it costs; nothing weird makes it fail."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.balancer.batch import batch_of_one
from libra.balancer.causes import CAUSES, Cause
from libra.balancer.diagnosis import diagnose
from libra.balancer.state import JobSettings, JobState, RankInfo, new_state
from libra.balancer.step_record import StepFeatures, StepRecord
from tests.jobs import NOW_S
from tests.scenarios import Scenario
from tests.simulated_job import BACKWARD, FORWARD, SimulatedJob

EVEN = Scenario()
UNEVEN = Scenario(uneven=0.3)
EVENED = replace(UNEVEN, evened=True)
SLOW = Scenario(slow=((3, 0.6),))
STAGES = Scenario(layers=(2, 3))
EXCHANGE = replace(EVENED, exchange_s=0.2)
MISMATCHED = replace(EVENED, mismatched=tuple(range(0, 16, 2)))
UNEVEN_SLOW = Scenario(uneven=0.15, slow=((3, 0.5),))
VERY_UNEVEN_SLOW = Scenario(uneven=0.4, slow=((3, 0.8),))
ROTATED = Scenario(rotated=4)

# A job, what is to be done first, the rank named, and the same job without each cause.
TABLE: dict[str, tuple[Scenario, Cause, tuple[int, ...], dict[Cause, Scenario]]] = {
    "even": (EVEN, "even", (), {}),
    "uneven data": (UNEVEN, "uneven data", (), {"uneven data": EVENED}),
    "evened out": (EVENED, "even", (), {}),
    "slow rank": (SLOW, "slow rank", (3,), {"slow rank": EVEN}),
    "uneven stages": (
        STAGES,
        "uneven stages",
        (),
        {"uneven stages": replace(STAGES, layers=(2.5,))},
    ),
    "exchange": (EXCHANGE, "exchange bound", (), {"exchange bound": EVENED}),
    "mismatches": (MISMATCHED, "planner mismatch", (), {"planner mismatch": EVENED}),
    "slow rank and uneven data": (
        UNEVEN_SLOW,
        "slow rank",
        (3,),
        {
            "slow rank": replace(UNEVEN_SLOW, slow=()),
            # With a slow rank that is not repaired the data cost what they cost without it.
            "uneven data": UNEVEN_SLOW,
        },
    ),
    "slow rank, evened data": (
        replace(EVENED, slow=((2, 0.6),)),
        "slow rank",
        (2,),
        {"slow rank": EVENED},
    ),
    "exchange and slow rank": (
        replace(EXCHANGE, slow=((5, 0.7),)),
        "slow rank",
        (5,),
        {"slow rank": EXCHANGE, "exchange bound": replace(EVENED, slow=((5, 0.7),))},
    ),
    "stages and mismatches": (
        replace(MISMATCHED, layers=(2, 3)),
        "planner mismatch",
        (),
        {"planner mismatch": replace(EVENED, layers=(2, 3))},
    ),
    "micro-batches": (ROTATED, "uneven data", (), {}),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_was_planted_is_found(name: str) -> None:
    """Each cause alone and in pairs: the first to act on, its ranks, and seconds within 10 %."""
    scenario, cause, ranks, without = TABLE[name]
    found = scenario.job().diagnosis()
    truth = {c: scenario.step_seconds() - other.step_seconds() for c, other in without.items()}
    if name == "slow rank and uneven data":
        repaired = replace(scenario, slow=())
        truth["uneven data"] = (
            repaired.step_seconds() - replace(repaired, evened=True).step_seconds()
        )

    assert (found["cause"], tuple(found["ranks"])) == (cause, ranks), found
    for each, seconds in truth.items():
        assert found["lost_seconds"][each] == pytest.approx(seconds, rel=0.1), (each, found)
    if without and name != "stages and mismatches":
        assert set(found["lost_seconds"]) == set(without), found
    assert found["step_seconds"] == pytest.approx(scenario.step_seconds())
    assert found["steps"] == 16


def test_uneven_data_come_before_a_slow_rank_that_costs_little() -> None:
    """A slow rank is named all the same, with its speed and its cost."""
    found = VERY_UNEVEN_SLOW.job().diagnosis()

    assert found["cause"] == "uneven data"
    assert "Rank 3 on node1 runs at 0.80 of the typical speed" in found["sentence"]


def test_a_slow_rank_comes_first_where_it_costs_comparably() -> None:
    """A fault of half the cost of uneven data is repaired first: Libra evens data by itself."""
    found = Scenario(uneven=0.2, slow=((3, 0.6),)).job().diagnosis()

    assert found["cause"] == "slow rank"
    assert 2 < found["lost_seconds"]["uneven data"] / found["lost_seconds"]["slow rank"] < 3


def test_plain_ulysses_is_predicted_stage_by_stage() -> None:
    """Home features are of one layer; stages of more layers cost more under plain Ulysses too."""
    evened = replace(EVENED, layers=(1, 3))
    found = evened.job().diagnosis()

    truth = 1 - evened.step_seconds() / replace(evened, evened=False).step_seconds()
    assert found["recovered_share"] == pytest.approx(truth, rel=0.15)


def test_shares_are_what_libra_saves_and_could_save() -> None:
    """Plain Ulysses against the same job evened: what one can save the other has saved."""
    plain, evened = UNEVEN.job().diagnosis(), EVENED.job().diagnosis()
    truth = 1 - EVENED.step_seconds() / UNEVEN.step_seconds()

    assert plain["recoverable_share"] == pytest.approx(truth, rel=0.05)
    assert plain["recovered_share"] == pytest.approx(0, abs=0.01)
    assert evened["recoverable_share"] == pytest.approx(0, abs=0.01)
    assert evened["recovered_share"] == pytest.approx(truth, rel=0.05)


def test_the_exchange_is_taken_off_what_is_saved() -> None:
    """Waiting for tiles is the price of balance: the share recovered is that of step times."""
    found = EXCHANGE.job().diagnosis()

    truth = 1 - EXCHANGE.step_seconds() / UNEVEN.step_seconds()
    assert found["recovered_share"] == pytest.approx(truth, rel=0.05)


def test_a_compensated_slow_rank_costs_what_others_bear() -> None:
    """Where plans count on a rank's speed it holds nobody up: even, and mentioned."""
    found = replace(EVENED, slow=((3, 0.8),), planned=((3, 0.8),)).job().diagnosis()

    assert found["cause"] == "even"
    assert "Rank 3 on node1 runs at 0.80" in found["sentence"]
    assert found["lost_seconds"] == {}


def test_plans_that_count_on_old_speeds_are_a_mismatch() -> None:
    """A rank that is slow no more is still spared: the plans are wrong, not a rank."""
    scenario = replace(EVENED, planned=((3, 0.5),))
    found = scenario.job().diagnosis()

    assert found["cause"] == "planner mismatch"
    assert "speeds that no rank has any more" in found["sentence"]
    truth = scenario.step_seconds() - EVENED.step_seconds()
    assert found["lost_seconds"]["planner mismatch"] == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("steps", [4, 9])
def test_a_rank_is_not_blamed_too_early(steps: int) -> None:
    """Before enough steps agree the cause is open, and the rank in question is said."""
    found = replace(SLOW, num_steps=steps).job().diagnosis()

    assert (found["cause"], tuple(found["ranks"])) == ("too little evidence", (3,)), found
    assert "rank 3 on node1" in found["sentence"]


def test_a_rank_that_just_became_slow_is_no_planner_mismatch() -> None:
    """Between a rank's slowing down and its being slow for certain, no plan is blamed."""
    for slow_from in (8, 10, 13):
        found = replace(SLOW, slow_from=slow_from).job().diagnosis()

        assert found["cause"] in ("too little evidence", "slow rank"), found
        assert tuple(found["ranks"]) == (3,)


def test_scatter_without_a_slow_rank_is_the_planners() -> None:
    """Kernel times that no model explains, on any rank, are a mismatch of plan and truth."""
    found = Scenario(scatter=0.15).job().diagnosis()

    assert found["cause"] == "planner mismatch"
    assert "no rank is slow" in found["sentence"]


def test_micro_batches_are_judged_where_ranks_may_meet_in_them() -> None:
    """Totals even, micro-batches not: uneven, unless steps are too short for ranks to meet."""
    job = ROTATED.job()
    kernels = np.mean([r.kernel_seconds.mean() for r in job._state.log.records])
    found = job.diagnosis()
    short = ROTATED.job()
    for record in short._state.log.records:
        record.step_seconds = float(record.kernel_seconds.mean()) + 0.2
    once = short.diagnosis()

    truth = ROTATED.step_seconds() - 0.2 - kernels
    assert found["lost_seconds"]["uneven data"] == pytest.approx(truth, rel=0.1)
    assert "every micro-batch" in found["sentence"]
    assert once["cause"] == "even"


def test_too_few_steps_are_said_with_numbers() -> None:
    """One step is no evidence, whatever it shows."""
    found = replace(UNEVEN, num_steps=1).job().diagnosis()

    assert found["cause"] == "too little evidence"
    assert "1 complete steps of 2 needed, 8 of 8 ranks" in found["sentence"]


def test_doubted_figures_are_left_out_and_mentioned() -> None:
    """A rank that is not believed costs nothing in the diagnosis, which says why."""
    job = SLOW.job()
    job._state.doubts = {3: "its peers do not wait for it"}
    found = job.diagnosis()

    assert found["cause"] == "even"
    assert "Figures of rank 3 are not believed: its peers do not wait for it." in found["sentence"]


def test_every_sentence_is_found_in_the_summary() -> None:
    """The summary carries the same cause, numbers and sentence as the whole diagnosis."""
    job = UNEVEN_SLOW.job()
    summary, found = job.summary(NOW_S), job.diagnosis()

    assert summary["diagnosis"] == found["sentence"]
    assert summary["cause"] == found["cause"]
    assert summary["cause_ranks"] == list(found["ranks"])
    for name in ("lost_seconds", "recoverable_share", "recovered_share"):
        assert summary[name] == found[name]


REPORTS = SimulatedJob(world_size=2).reports(range(3))
FIGURES = st.one_of(st.just(0.0), st.floats(1e-9, 3600.0))


@st.composite
def states(draw: st.DrawFn) -> JobState:
    """Return a job of any steps that reports can tell of."""
    world_size = draw(st.integers(1, 4))
    micro_batches = draw(st.integers(0, 3))
    state = new_state("job", "observe", JobSettings())
    if draw(st.booleans()):
        state.fits.begin_attempt(2)
        for report in REPORTS:
            state.fits.learn(batch_of_one(report), np.ones(1))
    state.fits.begin_attempt(world_size)
    state.log.begin_attempt(0, world_size)
    row = st.lists(FIGURES, min_size=world_size, max_size=world_size).map(np.array)
    for rank in range(draw(st.integers(0, world_size))):
        pp = draw(st.integers(0, 2))
        state.ranks[rank] = RankInfo(rank=rank, node="n", dp=rank, cp=0, pool=0, pp=pp)
    for step in range(draw(st.integers(0, 4))):
        scale = draw(row)
        record = StepRecord(
            step=step,
            attempt=0,
            policy_version=draw(st.integers(0, 1)),
            agreed=True,
            step_seconds=draw(FIGURES),
            rank_seconds=draw(row),
            kernel_seconds=draw(row),
            waits=draw(row),
            sent_bytes=draw(st.integers(0, 1)),
            wait_seconds=0.0,
            wait_share=0.0,
            plan_mismatches=draw(st.integers(0, 2)),
        )
        if draw(st.booleans()):
            record.features = StepFeatures(
                kinds=[FORWARD, BACKWARD],
                actual=np.ones((world_size, 2, 6)) * scale[:, None, None],
                seconds=np.ones((world_size, 2)) * record.kernel_seconds[:, None] / 2,
                home=np.ones((world_size, 6)) * draw(row)[:, None],
                home_pairs=np.ones((world_size, micro_batches)) * draw(row)[:, None],
            )
        state.log._insert(record)
    if draw(st.booleans()):
        state.doubts = {draw(st.integers(0, 4)): "frozen"}
    return state


@given(states())
@settings(deadline=None, max_examples=150)
def test_no_record_is_too_weird(state: JobState) -> None:
    """Zeros, one rank, no prediction, doubts: known causes, finite seconds, shares in [0, 1]."""
    found = diagnose(state, JobSettings())

    assert found.cause in CAUSES
    assert found.sentence
    for share in (found.recoverable_share, found.recovered_share):
        assert share is None or 0 <= share <= 1
    assert all(np.isfinite(lost) and lost > 0 for lost in found.lost_seconds.values())
    assert list(found.lost_seconds.values()) == sorted(found.lost_seconds.values(), reverse=True)
    assert msgspec.json.decode(msgspec.json.encode(found))
