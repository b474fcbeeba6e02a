"""What a wave costs is found from all ranks' waves, forgotten with time and ruled by no rank."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.batch import batch_of_one
from libra.balancer.exchange_model import HALF_LIFE_STEPS, MIN_WAVES, ExchangeFits
from libra.balancer.job import Job
from libra.balancer.moments import Moments
from libra.balancer.snapshot import decode_state, encode_state
from libra.balancer.wire import MAX_WAVE_TRANSPORTS, NUM_WAVE_SUMS, Report, WaveMoments
from tests.jobs import NOW_S, feed
from tests.simulated_job import SimulatedJob

MESSAGE_S, BYTE_S = 1e-4, 2e-10


def wave_sums(
    seed: int, *, count: int = 32, slower: float = 1.0, mixed: bool = False
) -> list[float]:
    """Return moment sums of so many waves."""
    rng = np.random.default_rng(seed)
    waves = np.column_stack(
        (rng.integers(1, 8, count), rng.integers(1 << 16, 1 << 24, count))
    ).astype(np.float64)
    moments = Moments(num_features=2)
    # Mixed up, time goes by messages alone, and is about as long.
    cost = slower * np.array([5 * MESSAGE_S, 0.0] if mixed else [MESSAGE_S, BYTE_S])
    moments.add(waves, waves @ cost * np.exp(0.1 * rng.standard_normal(count)))
    sums: list[float] = moments.sums.tolist()
    return sums


def report(rank: int, step: int, sums: list[float], *, transport: str = "gloo") -> Report:
    empty = SimulatedJob(world_size=16).report([step], rank, sequence=step)
    waves = [WaveMoments(transport=transport, sums=sums)]
    return msgspec.structs.replace(empty, waves=waves)


def learned(steps: int, *, ranks: int = 8, **changes: Any) -> ExchangeFits:
    """Return what so many steps of all ranks teach."""
    fits = ExchangeFits()
    learn(fits, range(steps), ranks=ranks, **changes)
    return fits


def learn(fits: ExchangeFits, steps: range, *, ranks: int = 8, **changes: Any) -> None:
    for step in steps:
        for rank in range(ranks):
            fits.learn(batch_of_one(report(rank, step, wave_sums(step * ranks + rank, **changes))))
        fits.advance(step)


def test_planted_seconds_are_found() -> None:
    """Messages and bytes are priced apart, and the next reports are predicted."""
    fits = learned(6)
    assert fits.main is not None

    assert fits.main.coefficients == pytest.approx([MESSAGE_S, BYTE_S], rel=0.05)
    assert fits.seconds(3, 1e7) == pytest.approx(3 * MESSAGE_S + 1e7 * BYTE_S, rel=0.05)
    assert fits.main.error is not None
    assert fits.main.error < 0.1
    assert fits.main.typical[:2] == pytest.approx([4, 1 << 23], rel=0.1)


def test_nothing_is_said_without_evidence() -> None:
    """Fewer waves than a fit needs, or none, are no price."""
    fits = ExchangeFits()
    assert fits.seconds(1, 1) is None
    fits.learn(batch_of_one(report(0, 0, wave_sums(0, count=MIN_WAVES - 1))))
    fits.advance(0)

    assert fits.seconds(1, 1) is None
    assert fits.main is not None
    assert (fits.main.source, fits.main.error) == ("unknown", None)


LIES = {
    "1000 times slower": wave_sums(99, slower=1000.0),
    "1000 times quicker": wave_sums(99, slower=1e-3),
    "a billion waves": (1e9 * np.array(wave_sums(99, slower=2.0))).tolist(),
    "a billion mixed up": (1e9 * np.array(wave_sums(99, mixed=True))).tolist(),
    "no time at all": wave_sums(99, slower=1e-12),
    "nothing but a count": [1e6, *[0.0] * (NUM_WAVE_SUMS - 1)],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_one_rank_does_not_rule_the_fit(lie: list[float]) -> None:
    """Whatever one of eight ranks reports, honest coefficients move by less than a fifth."""
    fits = ExchangeFits()
    for step in range(6):
        for rank in range(7):
            fits.learn(batch_of_one(report(rank, step, wave_sums(step * 8 + rank))))
        fits.learn(batch_of_one(report(7, step, lie)))
        fits.advance(step)

    for messages, sent_bytes, tolerance in ((4, 1 << 23, 0.2), (1, 1 << 24, 0.5)):
        wave_s = messages * MESSAGE_S + sent_bytes * BYTE_S
        assert fits.seconds(messages, sent_bytes) == pytest.approx(wave_s, rel=tolerance)


def test_a_link_that_changed_is_learned() -> None:
    """Old waves lose half of their weight in a half-life: a slower network is known in time."""
    fits = learned(20)
    half_life = int(HALF_LIFE_STEPS)
    fits.advance(19 + 5 * half_life)
    learn(fits, range(20 + 5 * half_life, 40 + 5 * half_life), slower=4.0)

    assert fits.seconds(4, 1 << 23) == pytest.approx(
        4 * (4 * MESSAGE_S + (1 << 23) * BYTE_S), rel=0.1
    )


def test_what_was_known_stays_known() -> None:
    """Where kernels come to hide all waves nothing new is measured, and the price stands."""
    fits = learned(6)
    before = fits.seconds(4, 1 << 23)
    for step in range(6, 4000, 100):
        fits.advance(step)

    assert fits.seconds(4, 1 << 23) == pytest.approx(before, rel=1e-3)


@given(st.permutations(list(range(24))))
def test_the_order_of_reports_does_not_matter(order: list[int]) -> None:
    """Between two complete steps reports may overtake each other; the fit is the same."""
    reports = [report(index % 8, index // 8, wave_sums(index)) for index in range(24)]
    fits = [ExchangeFits(clock=0), ExchangeFits(clock=0)]
    for own, numbers in zip(fits, (range(24), order), strict=True):
        for number in numbers:
            own.learn(batch_of_one(reports[number]))
        own.advance(3)

    assert fits[0].seconds(4, 1 << 23) == pytest.approx(fits[1].seconds(4, 1 << 23), rel=1e-9)


@pytest.mark.parametrize("wild", [2**53, 0], ids=["far-ahead", "far-behind"])
def test_a_wild_step_number_neither_drowns_nor_wipes(wild: int) -> None:
    """One rank's broken step counter changes the price no more than its waves do."""
    fits = ExchangeFits()
    learn(fits, range(10**6, 10**6 + 6))
    assert fits.main is not None
    before = fits.main.count
    fits.learn(batch_of_one(report(0, wild, wave_sums(3, slower=2.0))))
    fits.advance(10**6 + 5)

    assert before <= fits.main.count <= 1.05 * before
    assert fits.seconds(4, 1 << 23) == pytest.approx(4 * MESSAGE_S + (1 << 23) * BYTE_S, rel=0.1)


def test_transports_are_bounded() -> None:
    """A job that names ever new transports keeps eight."""
    fits = ExchangeFits()
    for number in range(20):
        fits.learn(batch_of_one(report(0, 0, wave_sums(0), transport=f"t{number}")))
    fits.advance(0)

    assert len(fits.fits) == MAX_WAVE_TRANSPORTS


def test_a_job_learns_shows_and_keeps_its_exchange() -> None:
    """Reports reach the fit, the exchange view has it, and a balancer that died knows it again."""
    job = Job("job")
    simulated = SimulatedJob(world_size=4)
    for step in range(6):
        for rank in range(4):
            waves = [WaveMoments(transport="gloo", sums=wave_sums(step * 4 + rank))]
            own = simulated.report([step], rank, sequence=step)
            feed(job, [msgspec.structs.replace(own, waves=waves)])
    shown = job.exchange(600)["fits"]

    assert [(row["transport"], row["source"]) for row in shown] == [("gloo", "measured")]
    assert shown[0]["coefficients"]["messages"] == pytest.approx(MESSAGE_S, rel=0.1)
    assert shown[0]["coefficients"]["sent_bytes"] == pytest.approx(BYTE_S, rel=0.1)
    assert 0 < shown[0]["error"] < 0.2
    again = decode_state(encode_state(job._state))
    assert again.exchange.seconds(4, 1e7) == job._state.exchange.seconds(4, 1e7)
    again.exchange.learn(batch_of_one(report(15, 7, wave_sums(0))))
    again.exchange.advance(7)
    assert again.exchange.seconds(4, 1e7) == pytest.approx(4 * MESSAGE_S + 1e7 * BYTE_S, rel=0.1)

    feed(job, [replace(simulated, attempt=1).report([0], 0, sequence=0)])
    assert job.exchange(600)["fits"][0]["source"] == "measured"
    assert job.summary(NOW_S)["attempt"] == 1
