"""Slow ranks are named for certain, and ranks that only had much to do are not.

Shapes: S steps, D data-parallel ranks, P stages, M micro-batches.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.balancer.rank_evidence import RankEvidence, rank_evidence
from libra.balancer.trace import Float64, Trace, make_trace


def _trace(steps: int, dp: int, pp: int, micro_batches: int) -> Trace:
    """Return a trace of forwards only, in the order of [S, P, D, M]."""
    shape = (steps, pp, dp, micro_batches)
    step, stage, dp_rank, micro = (own.ravel() for own in np.indices(shape))
    numbers = {
        "step": step,
        "stage": stage,
        "dp_rank": dp_rank,
        "rank": stage * dp + dp_rank,
        "mb_id": micro,
        "mc": np.zeros_like(step),
        "gmc": stage,
    }
    seconds = {"start_ts": micro.astype(float), "duration": np.ones(step.shape)}
    return make_trace(numbers, seconds, (np.zeros_like(step), ("forward-compute",)), {}, "drawn")


def _work(rng: np.random.Generator, trace: Trace, sigma: float, slow: dict[int, float]) -> Float64:
    """Draw seconds: a micro-batch's data is shared by the stages, noise is each one's own."""
    steps, dp, pp = len(trace.steps), trace.mesh.dp_size, trace.mesh.pp_size
    micro_batches = len(trace.step) // (steps * dp * pp)
    data = np.exp(sigma * rng.standard_normal((steps, 1, dp, micro_batches)))
    noise = np.exp(0.03 * rng.standard_normal((steps, pp, dp, micro_batches)))
    factors = np.array([slow.get(rank, 1.0) for rank in range(pp * dp)]).reshape(pp, dp)
    return np.asarray((data * noise * factors[:, :, None]).ravel())


def _evidence(seed: int, trace: Trace, sigma: float, slow: dict[int, float]) -> RankEvidence:
    return rank_evidence(trace, _work(np.random.default_rng(seed), trace, sigma, slow))


@pytest.mark.parametrize(
    ("steps", "dp", "pp"), [(5, 16, 2), (8, 32, 1), (20, 8, 4), (40, 2, 1), (5, 2, 2)]
)
def test_equal_ranks_raise_no_alarm(steps: int, dp: int, pp: int) -> None:
    """Of 300 jobs of equal ranks and uneven data, fewer than one in a hundred has a rank named."""
    trace = _trace(steps, dp, pp, 4)

    alarms = [seed for seed in range(300) if _evidence(seed, trace, 0.5, {}).named.any()]

    assert len(alarms) < 3, alarms


@pytest.mark.parametrize(("steps", "dp", "pp"), [(20, 16, 2), (40, 16, 1), (20, 4, 4)])
def test_a_slow_rank_is_named(steps: int, dp: int, pp: int) -> None:
    """A rank 1.5 times slow amid uneven data is named, it alone, with about its factor."""
    trace = _trace(steps, dp, pp, 8)
    for seed in range(50):
        evidence = _evidence(seed, trace, 0.5, {3: 1.5})

        assert np.flatnonzero(evidence.named).tolist() == [3]
        assert evidence.factor[3] == pytest.approx(1.5, abs=5 * float(evidence.error[3]) + 0.02)
        assert evidence.slowness[3] == evidence.factor[3]
        assert (np.delete(evidence.slowness, 3) == 1.0).all()


def test_a_fast_peer_makes_no_rank_slow() -> None:
    """In a pipeline of two, the other rank of a fast one is not taken for slow."""
    trace = _trace(20, 8, 2, 8)
    named = [_evidence(seed, trace, 0.3, {1: 0.7}).named.any() for seed in range(50)]

    assert not any(named)


@settings(deadline=None, max_examples=30)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_units_do_not_matter(scale: float, seed: int) -> None:
    """Factors and names are the same in any unit of time."""
    trace = _trace(6, 4, 2, 2)
    work = _work(np.random.default_rng(seed), trace, 0.5, {2: 1.4})
    first, second = rank_evidence(trace, work), rank_evidence(trace, scale * work)

    np.testing.assert_allclose(first.factor, second.factor)
    assert first.named.tolist() == second.named.tolist()


def test_a_rank_without_peers_is_not_judged() -> None:
    """With one rank at each stage a slow one cannot be told from an uneven stage."""
    evidence = _evidence(0, _trace(10, 1, 4, 4), 0.1, {2: 3.0})

    assert not evidence.named.any()
    assert evidence.factor.tolist() == [1.0] * 4
