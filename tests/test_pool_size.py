"""The advice on pool sizes follows from what sequences cost, and is never larger than pays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libra.balancer.job import Job
from libra.balancer.pool_advice import PoolAdvice
from libra.balancer.pool_size import advise_pool_size
from libra.balancer.sequence_costs import sequence_seconds
from libra.balancer.step_placement import Meeting
from tests.jobs import NOW_S, feed
from tests.scenarios import Scenario
from tests.simulated_job import SimulatedJob

Float64 = NDArray[np.float64]


def advise(costs: Float64, meeting: Meeting = "micro_batch") -> PoolAdvice:
    advice = advise_pool_size([costs], meeting=meeting)
    assert advice is not None
    return advice


def one_long(groups: int = 16, length: float = 4.0) -> Float64:
    """One sequence of ``length`` times the mean, the others alike."""
    others = (groups - length) / (groups - 1)
    return np.array([[length] + [others] * (groups - 1)])


def test_even_costs_need_no_pool() -> None:
    """Where nothing is uneven nothing should move, and the reason says so."""
    advice = advise(np.ones((2, 8)))

    assert (advice.recommended, advice.largest_pool) == (1, 0)
    assert advice.reason.startswith("Even already")


def test_shares_are_those_of_the_arithmetic() -> None:
    """One long sequence: its pool takes its mean, the step takes its pool's."""
    advice = advise(one_long())

    slowest = [4.0, *((4 + (p - 1) * 0.8) / p for p in (2, 4, 8)), 1.0]
    assert [size.sequences_per_pool for size in advice.sizes] == [1, 2, 4, 8, 16]
    assert [size.skew for size in advice.sizes] == pytest.approx(slowest)
    saved = [1 - seconds / 4 for seconds in slowest]
    assert [size.saved_share for size in advice.sizes] == pytest.approx(saved, abs=1e-6)
    assert advice.recommended == 16
    assert advice.home_skew == pytest.approx(4)


def test_the_smallest_size_that_is_as_good_is_taken() -> None:
    """Two long sequences that two pools of eight even out need no pool of sixteen."""
    costs = np.array([[5.0, 5.0, *[6 / 14] * 14]])
    advice = advise(costs)

    assert advice.recommended == 8
    assert advice.largest_sequence == pytest.approx(5)


def test_placement_alone_may_do() -> None:
    """Where ranks meet once a step, many micro-batches even CP groups without any pool."""
    costs = np.random.default_rng(0).lognormal(0, 0.5, (16, 8))
    once, every = advise(costs, "step"), advise(costs)

    assert once.recommended == 1
    assert once.reason.startswith("Placement alone evens it")
    assert every.recommended > 1


def test_elastic_pools_are_told_of() -> None:
    """One sequence that fills the mesh: pools of two, larger for it alone, do as well."""
    advice = advise(one_long(16, 8.0))

    assert advice.recommended == 16
    assert (advice.elastic_from, advice.largest_pool) == (1, 16)
    assert "Elastic pools" in advice.reason


@pytest.mark.parametrize(("price", "recommended"), [(0.0, 16), (10.0, 1), (None, 16)])
def test_the_exchange_is_taken_off(price: float | None, recommended: int) -> None:
    """An exchange that takes more than it saves rules pools out; an unknown one does nothing."""

    def exchange(messages: float, sent_bytes: float) -> float | None:
        assert messages > 0
        assert sent_bytes > 0
        return price

    advice = advise_pool_size([one_long()], exchange=exchange, bytes_per_second=1e6)

    assert advice is not None
    assert advice.recommended == recommended
    assert (advice.sizes[-1].exchange_share is None) == (price is None)


COSTS = st.lists(st.floats(0.01, 1000), min_size=1, max_size=24)


@given(COSTS, st.integers(1, 3), st.sampled_from(["micro_batch", "step"]))
@settings(deadline=None, max_examples=60)
def test_any_costs_have_advice(row: list[float], micro_batches: int, meeting: Meeting) -> None:
    """The smallest size within 1 % of the best, the same twice, and none evens out a sequence
    of more than P times the mean.
    """
    costs = np.array([row] * micro_batches)
    advice = advise(costs, meeting)
    best = max(size.saved_share for size in advice.sizes)
    good = [s.sequences_per_pool for s in advice.sizes if s.saved_share >= best - 0.01]

    assert advice == advise(costs, meeting)
    assert advice.recommended == min(good)
    assert advice.sizes[-1].sequences_per_pool == len(row)
    for size in advice.sizes:
        assert size.skew >= 1 - 1e-9
        assert size.saved_share <= 1
        if meeting == "micro_batch":
            heaviest = costs.max(axis=1).max() / costs.mean() / size.sequences_per_pool
            assert size.skew * micro_batches >= heaviest - 1e-6


def test_no_costs_have_none() -> None:
    """Without work there is nothing to advise; steps of two meshes are refused."""
    assert advise_pool_size([]) is None
    assert advise_pool_size([np.zeros((1, 4))]) is None
    with pytest.raises(ValueError, match="CP groups"):
        advise_pool_size([np.ones((1, 4)), np.ones((1, 2))])


def test_a_job_is_advised_by_its_own_steps() -> None:
    """Summary, pools and what-if agree; before there is a model there is no advice."""
    job = Scenario(uneven=0.3).job()
    (each, once), whatif = job.pools()["advice"], job.whatif()["whatif"]

    assert job.summary(NOW_S)["recommended_pool"] == each["recommended"] > 1
    assert (each["meeting"], once["meeting"]) == ("micro_batch", "step")
    assert each["home_skew"] == pytest.approx(np.mean(job.skew(16)["home_skew"]), rel=0.05)
    assert whatif[0]["saved_share"] == [size["saved_share"] for size in each["sizes"]]
    assert Job("new").pools() == {"advice": []}
    assert Job("new").summary(NOW_S)["recommended_pool"] is None


def test_placed_steps_are_judged_as_drawn() -> None:
    """What placement has grouped is drawn again, so that advice does not change when it works."""
    job = Scenario(rotated=4, evened=True).job()
    for record in job._state.log.recent():
        assert record.features is not None
        record.features.home_pairs.sort(axis=1)
    grouped = job.pools()["advice"][0]
    job._state.policies = []
    in_order = job.pools()["advice"][0]

    assert in_order["home_skew"] == pytest.approx(1, abs=0.01)
    assert grouped["home_skew"] > 1.2


def test_sequences_are_those_of_cp_groups() -> None:
    """Ranks of a CP group hold one sequence; one that is not believed has no say in it."""
    job = Job("job")
    feed(job, SimulatedJob(world_size=4).reports(range(6)))
    state = job._state
    alone = sequence_seconds(state)
    for rank, info in state.ranks.items():
        state.ranks[rank] = type(info)(rank=rank, node="n", dp=rank // 2, cp=rank % 2, pool=0)
    pairs = sequence_seconds(state)
    state.doubts = {1: "random"}
    believed = sequence_seconds(state)

    assert alone[0].shape == (1, 4)
    assert pairs[0] == pytest.approx(alone[0].reshape(1, 2, 2).mean(axis=2))
    assert believed[0][0].tolist() == pytest.approx([alone[0][0, 0], pairs[0][0, 1]])
