"""Waves and the threshold to stay home follow what the exchange costs, and stay where they do."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.attention.plan import MIN_GAIN_PERMILLE
from libra.balancer.exchange_choice import (
    MAX_MIN_GAIN_PERMILLE,
    MAX_WAVES,
    MIN_STEPS,
    ExchangeChoice,
    ExchangeLoad,
    choose_exchange,
    decide_exchange,
    measure_load,
)
from libra.balancer.job import Job
from libra.balancer.moments import Moments
from libra.balancer.policy import Policy
from libra.balancer.state import JobState
from libra.balancer.wire import WaveMoments
from tests.coordinates import samplers
from tests.jobs import feed
from tests.simulated_job import SimulatedJob

# A pass of 10 ms whose bytes alone would take 6 ms.
LOAD = ExchangeLoad(
    passes=20.0,
    messages=3.0,
    message_seconds=2e-5,
    byte_seconds=6e-3,
    kernel_seconds=1e-2,
    received_share=0.4,
    waves=1,
)
SECONDS = st.floats(1e-6, 1.0)
LOADS = st.builds(
    ExchangeLoad,
    passes=st.floats(0.1, 1000),
    messages=st.floats(1, 64),
    message_seconds=st.floats(0, 1e-2),
    byte_seconds=SECONDS,
    kernel_seconds=SECONDS,
    received_share=st.floats(0, 1),
    waves=st.integers(1, 16),
)


def decide(load: ExchangeLoad, **changes: Any) -> ExchangeChoice:
    settings: dict[str, Any] = {
        "wait_seconds": 1e9,
        "slowest_seconds": load.passes * load.kernel_seconds,
        "waves": load.waves,
        "min_gain_permille": MIN_GAIN_PERMILLE,
    }
    return decide_exchange(load, **(settings | changes))


def timeline(load: ExchangeLoad, waves: int) -> float:
    """Return what a receiving rank idles in one pass, event by event as the operator goes."""
    wave = load.messages * load.message_seconds + load.byte_seconds / waves
    received = load.received_share * load.kernel_seconds
    half = (load.kernel_seconds - received) / 2
    now, arrives, idle = half, wave, 0.0
    for _ in range(waves):
        idle += max(0.0, arrives - now)
        now = max(now, arrives)
        arrives = now + wave
        now += received / waves
    returned = now + wave
    return idle + max(0.0, returned - (now + half))


@given(LOADS, st.integers(1, 16))
def test_exposed_seconds_are_those_of_the_operators_schedule(
    load: ExchangeLoad, waves: int
) -> None:
    """What is said to be exposed is what a rank would idle, played through."""
    assert load.exposed_seconds(waves) == pytest.approx(
        load.passes * timeline(load, waves), rel=1e-6, abs=1e-9
    )


def test_more_waves_hide_what_one_does_not() -> None:
    """Where bytes take long and messages are cheap the first wave must come sooner."""
    choice = decide(LOAD)

    assert choice.waves > 1
    assert choice.exposed_seconds < 0.5 * LOAD.exposed_seconds(1)
    assert f"Exchange in {choice.waves} waves instead of 1" in choice.reason


def test_dear_messages_call_for_fewer_waves() -> None:
    """Where each message costs as much as the bytes one wave is best."""
    choice = decide(replace(LOAD, waves=4, message_seconds=3e-3))

    assert choice.waves == 1


def test_what_kernels_hide_anyway_stays_as_it_is() -> None:
    """A hidden exchange costs nothing: waves stay, and cells may move for the least gain."""
    hidden = replace(LOAD, byte_seconds=1e-4, waves=3)
    choice = decide(hidden, waves=0, min_gain_permille=200)

    assert (choice.waves, choice.exposed_seconds) == (0, 0.0)
    assert choice.min_gain_permille == MIN_GAIN_PERMILLE


def test_cells_stay_home_below_what_the_exchange_costs() -> None:
    """The threshold is the exposed share of the slowest rank's kernel seconds."""
    choice = decide(LOAD)

    share = choice.exposed_seconds / (LOAD.passes * LOAD.kernel_seconds)
    assert share > 0.05
    assert 1000 * share <= choice.min_gain_permille <= 1000 * share + 1


def test_the_exchange_costs_no_more_than_ranks_waited() -> None:
    """Measured waits bound what a model makes of them."""
    load = replace(LOAD, byte_seconds=2e-2, waves=2)
    choice = decide(load, wait_seconds=0.01 * load.exposed_seconds(2))

    assert choice.exposed_seconds <= 0.01 * load.exposed_seconds(2) * (1 + 1e-9)


def test_a_small_saving_changes_nothing() -> None:
    """What other waves would save must be worth a change of policy."""
    choice = decide(LOAD, slowest_seconds=1e4 * LOAD.passes * LOAD.kernel_seconds)

    assert choice.waves == LOAD.waves
    assert "as now: another number would save 0.0" in choice.reason


@given(LOADS, st.integers(0, 1000))
def test_a_choice_stands_once_it_is_in_force(load: ExchangeLoad, threshold: int) -> None:
    """Decided again on the same load nothing changes: policies do not flap. All is in range."""
    first = decide(load, min_gain_permille=threshold)
    again = decide(
        replace(load, waves=first.waves),
        waves=first.waves,
        min_gain_permille=first.min_gain_permille,
    )

    assert (again.waves, again.min_gain_permille) == (first.waves, first.min_gain_permille)
    assert first.waves in {*range(1, MAX_WAVES + 1), load.waves}
    assert first.min_gain_permille == threshold or (
        MIN_GAIN_PERMILLE <= first.min_gain_permille <= MAX_MIN_GAIN_PERMILLE
    )


PASSES, MESSAGES, WAVE_BYTES, BYTE_S = 8, 3, 2e6, 1e-8


def state_of(*, steps: int = 12, pooling: bool = True, waves: bool = True) -> JobState:
    """Return a job whose ranks exchanged two waves of so many bytes in each pass of attention."""
    job = Job("job")
    job._state.policy = Policy(version=1, pooling=pooling)
    simulated = SimulatedJob(world_size=4)
    rng = np.random.default_rng(0)
    for report in simulated.reports(range(steps), policy_version=1):
        table = np.array([[MESSAGES, WAVE_BYTES]] * 16) * rng.uniform(0.5, 1.5, (16, 2))
        moments = Moments(num_features=2)
        moments.add(table, table @ [1e-4, BYTE_S])
        own = [WaveMoments(transport="gloo", sums=moments.sums.tolist())]
        totals = [
            msgspec.structs.replace(
                step, sent_bytes=int(PASSES * 2 * WAVE_BYTES), wait_seconds=10.0
            )
            for step in report.steps
        ]
        feed(job, [msgspec.structs.replace(report, steps=totals, waves=own if waves else [])])
    return job._state


def test_a_job_is_read_as_it_is() -> None:
    """From reports alone: passes, bytes and seconds are those that were planted."""
    state = state_of()
    records, fit = state.log.recent(), state.exchange.main
    coefficients = state.fits.tile_coefficients()
    assert fit is not None
    assert coefficients is not None
    load = measure_load(records, fit, coefficients, 2)
    kernels = float(np.mean([record.kernel_seconds.mean() for record in records]))

    assert load.passes == pytest.approx(PASSES, rel=0.1)
    assert load.messages == pytest.approx(MESSAGES, rel=0.1)
    assert load.message_seconds == pytest.approx(1e-4, rel=0.1)
    assert load.byte_seconds == pytest.approx(2 * WAVE_BYTES * BYTE_S, rel=0.1)
    assert load.kernel_seconds == pytest.approx(kernels / PASSES, rel=0.1)
    assert 0 < load.received_share < 1


def test_a_dear_exchange_raises_the_threshold() -> None:
    """Of a whole job, from its reports: cells must gain what the exchange costs."""
    choice = choose_exchange(state_of())

    assert choice is not None
    assert choice.exposed_seconds > 0
    assert choice.min_gain_permille > MIN_GAIN_PERMILLE


@pytest.mark.parametrize(
    "lacking",
    [{"steps": MIN_STEPS - 1}, {"pooling": False}, {"waves": False}],
    ids=["steps", "pooling", "waves"],
)
def test_without_evidence_there_is_no_choice(lacking: dict[str, Any]) -> None:
    """Too few steps, none under a pooling policy, or no measured wave: nothing is said."""
    assert choose_exchange(state_of(**lacking)) is None


@pytest.mark.parametrize(("waves", "expected"), [(0, 2), (1, 1), (4, 4)])
def test_samplers_plan_with_the_policys_waves(waves: int, expected: int) -> None:
    """A policy's number of waves reaches the plan; 0 leaves the sampler's own."""
    sampler = samplers(4, 2)[0]
    policy = Policy(version=1, pooling=True, waves=waves, min_gain_permille=77)
    cell = sampler.cells(0, policy)[0]

    assert (cell.settings.waves, cell.settings.min_gain_permille) == (expected, 77)
