"""The whole loop on a real job: a rank that becomes slow is found, and its work goes elsewhere."""

import threading
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.running import RunningBalancer, running_balancer, wait_for
from tests.watched_job import WatchedJob, run_watched, slowed

ONSET = 60
FACTOR = 1.5
NAMED_WITHIN = 20
EVEN_AFTER = 40


@pytest.mark.dist
@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_slowed_rank_is_named_and_relieved(tmp_path: Path) -> None:
    """A rank at two thirds of its speed is named within 20 steps, and after 40 skew is under 1.10.

    No other rank is ever named, and the job itself never waits for the balancer.
    """
    folder = tmp_path / "job"
    folder.mkdir()
    with running_balancer(tmp_path / "balancer.sqlite", "--mode", "adapt") as balancer:
        job = WatchedJob(url=balancer.url, folder=str(folder), name="slowed", steps=ONSET + 60)
        errors: list[BaseException] = []
        ranks = threading.Thread(target=_run, args=(job, errors))
        ranks.start()
        named: dict[int, int] = {}
        try:
            wait_for(lambda: job.step() >= ONSET or errors, 240)
            assert not errors, errors
            with slowed(job.pid(1), FACTOR) as cycle:
                while ranks.is_alive():
                    for rank in _slow(balancer):
                        named.setdefault(rank, job.step())
                    ranks.join(0.05)
        finally:
            ranks.join(300)
        assert not errors, errors
        assert cycle.stops > 100
        assert list(named) == [1]
        assert named[1] - ONSET <= NAMED_WITHIN
        skew = balancer.view("slowed/skew")
        late = [s for step, s in _by_step(skew) if step >= ONSET + EVEN_AFTER]
        assert len(late) >= 10
        assert median(late) < 1.10


def _run(job: WatchedJob, errors: list[BaseException]) -> None:
    try:
        run_ranks(run_watched, job.world_size, job, timeout_s=300)
    except BaseException as error:
        errors.append(error)


def _slow(balancer: RunningBalancer) -> list[int]:
    """Return the ranks that the balancer holds for slow."""
    response = balancer.client.get("/api/v1/jobs/slowed/ranks")
    rows: list[dict[str, Any]] = response.json()["ranks"]
    return [row["rank"] for row in rows if row["speed"] < 1.0]


def _by_step(skew: dict[str, Any]) -> list[tuple[int, float]]:
    return list(zip(skew["steps"], skew["skew"], strict=True))
