"""Waves are measured where their end is known, and tell what they take when peers are in time."""

import numpy as np
import pytest

from libra.agent.waves import FOLD_WAVES, MIN_WAVES, WaveMeter
from libra.attention.observer import Traffic
from libra.balancer.moments import Moments
from libra.balancer.nonnegative import solve_nonnegative
from libra.balancer.wire import MAX_WAVE_TRANSPORTS

MESSAGE_S, BYTE_S = 2e-4, 1e-9


def traffic(
    *, backend: str = "gloo", device: str = "cpu", messages: int = 1, sent_bytes: int = 1 << 20
) -> Traffic:
    return Traffic(
        device=device,
        backend=backend,
        messages=messages,
        sent_bytes=sent_bytes,
        busier_bytes=sent_bytes,
    )


def taken(meter: WaveMeter) -> dict[str, Moments]:
    meter.end_step()
    return {own.transport: Moments(own.sums, num_features=2) for own in meter.take()}


@pytest.mark.parametrize("late", [0.0, 0.3, 0.45])
def test_what_is_reported_is_a_wave_whose_peers_are_in_time(late: float) -> None:
    """However late up to nearly half of the peers come, coefficients are within a tenth."""
    rng = np.random.default_rng(0)
    meter = WaveMeter()
    for _ in range(40 * FOLD_WAVES):
        messages, sent_bytes = int(rng.integers(1, 8)), int(rng.integers(1 << 16, 1 << 24))
        own = traffic(messages=messages, sent_bytes=sent_bytes)
        seconds = (messages * MESSAGE_S + sent_bytes * BYTE_S) * np.exp(0.05 * rng.normal())
        seconds += rng.exponential(0.5) if rng.random() < late else 0.0
        meter.note(own, wait_s=0.5 * seconds, seconds=seconds)
    moments = taken(meter)["gloo"]

    assert 0.45 * 40 * FOLD_WAVES <= moments.count <= 0.55 * 40 * FOLD_WAVES
    found = solve_nonnegative(moments.gram, moments.projection)
    assert found == pytest.approx([MESSAGE_S, BYTE_S], rel=0.1)


@pytest.mark.parametrize(
    ("own", "wait_s"),
    [
        (traffic(), 0.0),
        (traffic(), 1e-5),
        (traffic(), 0.03),
        (traffic(messages=0, sent_bytes=0), 0.5),
    ],
    ids=["hidden", "the-cost-of-asking", "nearly-hidden", "nothing-sent"],
)
def test_a_wave_whose_end_is_not_known_is_not_measured(own: Traffic, wait_s: float) -> None:
    """Hidden waves ended some time before they were asked for; empty ones have no cost."""
    meter = WaveMeter()
    for _ in range(2 * FOLD_WAVES):
        meter.note(own, wait_s=wait_s, seconds=1.0)

    assert taken(meter) == {}


def test_few_waves_wait_for_more() -> None:
    """Of a handful the quicker half says little: they are kept over steps, and then told once."""
    meter = WaveMeter()
    for _ in range(MIN_WAVES - 1):
        meter.note(traffic(), wait_s=1.0, seconds=1.0)
    assert taken(meter) == {}
    meter.note(traffic(), wait_s=1.0, seconds=1.0)

    assert taken(meter)["gloo"].count == MIN_WAVES
    assert taken(meter) == {}


def test_transports_and_waves_are_bounded() -> None:
    """However many transports and waves there are, a report holds eight and memory a fold."""
    meter = WaveMeter()
    for number in range(MAX_WAVE_TRANSPORTS + 3):
        for _ in range(3 * FOLD_WAVES - 1):
            meter.note(traffic(backend=str(number)), wait_s=1.0, seconds=1.0)

    assert len(meter._rows) == MAX_WAVE_TRANSPORTS
    assert all(len(rows) == FOLD_WAVES - 1 for rows in meter._rows.values())
    assert len(taken(meter)) == MAX_WAVE_TRANSPORTS
