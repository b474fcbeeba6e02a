"""What a job believes of its ranks: the slow one is named, the lying one is not believed."""

from dataclasses import replace

import numpy as np
import pytest

from libra.attention.cost import tile_features
from libra.balancer import belief
from libra.balancer.job import Job
from libra.balancer.wire import ReportError
from tests.jobs import NOW_S, feed
from tests.simulated_job import BACKWARD, FORWARD, TRUTH, Lie, SimulatedJob

HONEST = SimulatedJob(world_size=4, noise=0.03)
WHOLE = TRUTH[FORWARD] + TRUTH[BACKWARD]


def acted_on(job: Job) -> dict[int, float]:
    """Return the speeds that plans would take into account."""
    speeds = [row["speed"] for row in job.ranks(1)["ranks"]]
    return {rank: speed for rank, speed in enumerate(speeds) if speed != 1.0}


def misjudged(job: Job, truth: np.ndarray = WHOLE) -> float:
    """Return how far the model is off on documents that it has not seen, all in all."""
    lengths = np.concatenate([HONEST.lengths(1000 + step, 0) for step in range(8)])
    features = tile_features(0, lengths).sum(axis=0).astype(np.float64)
    coefficients = job._state.fits.tile_coefficients()
    assert coefficients is not None
    return float(features @ coefficients / (features @ truth)) - 1.0


@pytest.mark.parametrize("uneven", [True, False])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_that_becomes_slow_is_named_within_twenty_steps(
    world_size: int, uneven: bool
) -> None:
    """A rank slowed 1.5x is known with its speed, and believed; nothing else is suspected."""
    simulated = replace(
        HONEST, world_size=world_size, uneven=uneven, slow=((1, 1 / 1.5),), slow_from=40
    )
    job = Job("job")
    feed(job, simulated.reports(range(40)))
    assert acted_on(job) == {}

    for step in range(40, 60):
        feed(job, simulated.reports([step]))
        assert job._state.doubts == {}
        assert set(acted_on(job)) <= {1}

    assert acted_on(job)[1] == pytest.approx(1 / 1.5, rel=0.05)
    feed(job, replace(simulated, slow=()).reports(range(60, 80)))
    assert acted_on(job) == {}


@pytest.mark.parametrize("begin", [0, 21])
@pytest.mark.parametrize("uneven", [True, False])
@pytest.mark.parametrize("kind", ["random", "thousandfold", "frozen", "replayed", "slow"])
def test_a_lying_rank_is_not_believed_and_spoils_nothing(
    kind: str, uneven: bool, begin: int
) -> None:
    """Whatever one rank makes up, the model stays within 1 % and no rank's speed changes."""
    begin = 21 if kind == "replayed" else begin
    honest = replace(HONEST, uneven=uneven)
    lie = Lie(rank=1, kind=kind, begin=begin)  # type: ignore[arg-type]
    told, truth = Job("job"), Job("job")

    feed(told, replace(honest, lie=lie).reports(range(40)))
    feed(truth, honest.reports(range(40)))

    assert acted_on(told) == {}
    assert set(told._state.doubts) == {1}
    assert told._state.speeds[1].doubt == told._state.doubts[1]
    shown = [row["doubt"] for row in told.ranks()["ranks"]]
    assert shown == ["", told._state.doubts[1], "", ""]
    if uneven:
        assert misjudged(told) == pytest.approx(misjudged(truth), abs=0.01)
    newest = told._state.log.current(1)[0]
    assert newest.believed is not None
    assert newest.believed.tolist() == [True, False, True, True]
    assert newest.skew < 1.01 * max(truth.skew(1)["skew"][0], 1.0)


def test_a_rank_that_only_sends_nonsense_does_not_blind_the_balancer() -> None:
    """Steps go on without a rank whose every report is refused, and it is doubted."""
    job = Job("job")
    feed(job, HONEST.reports(range(10)))
    for step in range(10, 60):
        *good, bad = HONEST.reports([step])
        feed(job, good)
        bad.steps[0].kernels[0].seconds = float("nan")
        with pytest.raises(ReportError):
            job.apply(bad, NOW_S)

    newest = job._state.log.current(1)[0]
    assert (newest.step, newest.missing) == (59, (3,))
    assert job._state.doubts == {3: belief.SILENT}
    assert newest.skew < 4.0
    feed(job, HONEST.reports(range(60, 80)))
    assert job._state.doubts == {}
    assert job._state.log.current(1)[0].missing == ()


@pytest.mark.parametrize("world_size", [3, 4])
def test_nonsense_from_the_start_hides_no_slow_rank(world_size: int) -> None:
    """A rank that was never heard stops no step, and what stands for it speaks for nobody."""
    slow = replace(HONEST, world_size=world_size, slow=((1, 1 / 1.5),))
    job = Job("job")
    for step in range(60):
        feed(job, slow.reports([step])[:-1])

    assert job._state.log.complete > 30
    assert job._state.doubts == {world_size - 1: belief.SILENT}
    assert acted_on(job) == {1: pytest.approx(1 / 1.5, rel=0.05)}


def test_a_rank_that_counts_its_steps_wildly_does_not_blind_the_balancer() -> None:
    """Steps go on without a rank that tells of steps which nobody else knows, and with it after."""
    job = Job("job")
    feed(job, HONEST.reports(range(10)))
    for step in range(10, 40):
        *good, wild = HONEST.reports([step])
        wild.steps[0].step += 2**50
        feed(job, [*good, wild])

    newest = job._state.log.current(1)[0]
    assert (newest.step, newest.missing) == (39, (3,))
    feed(job, HONEST.reports(range(40, 60)))
    assert job._state.log.current(1)[0].missing == ()
    assert job._state.doubts == {}


@pytest.mark.parametrize("kind", ["random", "frozen"])
def test_a_liar_hides_no_slow_rank_of_three(kind: str) -> None:
    """Of three ranks one makes up its seconds: the slow one of the others is named."""
    lie = Lie(rank=2, kind=kind)  # type: ignore[arg-type]
    simulated = replace(HONEST, world_size=3, slow=((1, 1 / 1.5),), lie=lie)
    job = Job("job")

    feed(job, simulated.reports(range(40)))

    assert set(job._state.doubts) == {2}
    assert acted_on(job) == {1: pytest.approx(1 / 1.5, rel=0.05)}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_throttled_clocks_are_followed_within_ten_steps(world_size: int) -> None:
    """When all calls take 1.3x as long, the model knows within 3 %, and says when it began."""
    simulated = replace(HONEST, world_size=world_size, throttled=1.3, throttled_from=40)
    job = Job("job")
    feed(job, simulated.reports(range(40)))
    assert job._state.fits.drifts == []

    feed(job, simulated.reports(range(40, 50)))

    assert misjudged(job, 1.3 * WHOLE) == pytest.approx(0.0, abs=0.03)
    assert {drift.kind for drift in job._state.fits.drifts} == {FORWARD, BACKWARD}
    assert all(40 <= drift.step < 50 for drift in job._state.fits.drifts)
    assert job._state.doubts == {}


def test_a_change_of_one_coefficient_is_followed() -> None:
    """Pairs that cost half as much again, and nothing else, are learned within ten steps."""
    job = Job("job")
    feed(job, HONEST.reports(range(40)))
    dearer = tuple((kind, tuple(c * [1, 1, 1, 1.5, 1, 1])) for kind, c in TRUTH.items())

    feed(job, replace(HONEST, truth=dearer).reports(range(40, 50)))

    truth = np.sum([c for _, c in dearer], axis=0)
    assert misjudged(job, truth) == pytest.approx(0.0, abs=0.03)


def test_everything_survives_a_restart() -> None:
    """Speeds, doubts, drifts and the evidence of each rank come back from a dump to the bit."""
    lie = Lie(rank=1, kind="slow", begin=21)
    simulated = replace(HONEST, lie=lie, throttled=1.3, throttled_from=25)
    job = Job("job")
    feed(job, simulated.reports(range(36)))
    assert job._state.doubts
    assert job._state.fits.drifts

    revived = Job.load(job.dump())
    for each in (job, revived):
        feed(each, simulated.reports(range(36, 44)))

    assert revived.dump() == job.dump()


def test_one_ranks_absurd_waits_are_no_loss() -> None:
    """A rank that says it waited for an hour of each step changes no diagnosis."""
    honest, told = Job("job"), Job("job")
    feed(honest, HONEST.reports(range(20)))
    reports = HONEST.reports(range(20))
    for report in reports:
        if report.rank == 1:
            report.steps[0].wait_seconds = 3600.0
    feed(told, reports)

    lost = [job.diagnosis()["lost_seconds"].get("exchange bound", 0.0) for job in (honest, told)]
    assert lost[1] == pytest.approx(lost[0], abs=0.01)
    assert told.diagnosis()["cause"] == "uneven data"
