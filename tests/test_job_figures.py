"""What the metrics show of a job's ranks, and of how far a policy has spread."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from libra.balancer.job import Job
from libra.balancer.job_figures import lagging_ranks, largest, pool_loads, spread
from libra.balancer.policy import Policy
from tests.jobs import NOW_S, feed
from tests.simulated_job import SimulatedJob

seconds = arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(0, 1e3))


@given(values=seconds)
def test_the_spread_is_that_of_the_sorted_values(values: np.ndarray) -> None:
    """Whatever is partitioned, the figures are those of the values in order."""
    ordered = np.sort(values)
    found = spread(values)

    assert (found["min"], found["max"]) == (ordered[0], ordered[-1])
    assert found["p50"] == ordered[len(ordered) // 2]
    assert found["p99"] == ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    assert largest(values, 5) == ordered[::-1][:5].tolist()


def test_pools_are_compared_with_the_job() -> None:
    """A pool that works twice as long as the other shows four thirds of the mean."""
    loads = pool_loads(np.array([1.0, 1.0, 2.0, 2.0]), np.array([0, 0, 1, 1]))

    assert np.allclose(loads, [2 / 3, 4 / 3])
    assert pool_loads(np.zeros(2), np.array([0, 1])) == [1.0, 1.0]


def test_ranks_lag_until_their_step_under_the_policy() -> None:
    """All ranks lag behind a new policy, then those that have not reported a step under it."""
    job, ranks = Job("job"), SimulatedJob(world_size=4)
    feed(job, ranks.reports(range(2)))
    seen = [lagging_ranks(job.state)]
    job.publish(Policy(version=0, pooling=True), NOW_S)
    feed(job, ranks.reports(range(2, 3)))
    seen.append(lagging_ranks(job.state))
    feed(job, ranks.reports(range(3, 4), policy_version=1))
    seen.append(lagging_ranks(job.state))

    assert seen == [0, 4, 0]
