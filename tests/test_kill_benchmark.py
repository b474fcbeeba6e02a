"""The benchmark of kills finds what is lost, and a balancer loses nothing that it acknowledged."""

import pytest

from benchmarks import kill
from benchmarks.kill import Tally, row, run
from benchmarks.kill_load import Acknowledged, KillLoad
from tests.running import RunningBalancer, make_report


@pytest.mark.fault
def test_kills_lose_nothing_that_was_acknowledged() -> None:
    """Policies and modes are all there; so are steps older than a flush interval."""
    tally = run(2, seed=5, window_s=1.0)

    assert tally.kills == 2
    assert tally.policies > 0
    assert tally.steps > 0
    assert (tally.lost_policies, tally.lost_modes, tally.late_steps) == (0, 0, 0)
    assert len(tally.ready_s) == 3


def test_losses_are_found(balancer: RunningBalancer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy, a mode and an old step that are not there are counted, a young step is not."""
    job = "lossy"
    monkeypatch.setattr(KillLoad, "job", job)
    for rank in range(2):
        balancer.send(make_report(job, sequence=5, rank=rank))
    said = Acknowledged(
        policies={1: "gone"},
        mode="frozen",
        tried="adapt",
        steps={5: 0.0, 6: 1.0, 7: 99.0},
        killed_s=100.0,
    )
    tally = Tally()

    kill._look(balancer, said, tally)

    assert (tally.lost_policies, tally.lost_modes, tally.late_steps) == (1, 1, 1)
    assert tally.lost_s == [99.0]


def test_a_lost_job_is_found(balancer: RunningBalancer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is gone has lost all that was acknowledged of it."""
    monkeypatch.setattr(KillLoad, "job", "never-seen")
    tally = Tally(ready_s=[1.0])
    said = Acknowledged(policies={1: "a", 2: "b"}, steps={0: 0.0}, killed_s=100.0)

    kill._look(balancer, said, tally)

    assert (tally.lost_policies, tally.late_steps) == (2, 1)
    assert row(tally)["of them lost"] == 2
