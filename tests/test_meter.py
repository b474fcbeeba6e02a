"""The meter tells what happened: every call once, in the right step, on the clock asked for."""

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from libra.agent.guard import MIN_CALLS, WARM_UP_CALLS
from libra.agent.meter import FOLD_ROWS, StepMeter
from libra.agent.samples import MAX_KINDS, MAX_POINTS
from libra.attention.observer import KernelKind, Observer, Traffic
from libra.balancer.moments import Moments
from libra.balancer.wire import MAX_MICRO_BATCHES, StepTotals
from tests.layouts import two_sequence_layout

FORWARD = KernelKind(
    device="cpu",
    backend="sdpa",
    dtype="float32",
    head_dim=64,
    group_heads=2,
    direction="forward",
)
BACKWARD = replace(FORWARD, direction="backward")
PAIRS = 512 * 513 // 2, 4 * (128 * 129 // 2)


def note(
    meter: StepMeter,
    features: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
    *,
    kind: KernelKind = FORWARD,
    wall_s: float = 0.0,
    cpu_s: float = 0.0,
) -> None:
    """Note a call that began so long ago on either clock."""
    wall, cpu, device = meter.start()
    meter.kernel((wall - wall_s, cpu - cpu_s, device), kind, features)


def exchange(
    meter: StepMeter,
    sent_bytes: int,
    *,
    wait_s: float,
    seconds: float = 0.0,
    device: str = "cpu",
) -> None:
    """Note a wave that took so long and was waited for at its end."""
    wall, cpu, event = meter.start()
    traffic = Traffic(
        device=device, backend="gloo", messages=1, sent_bytes=sent_bytes, busier_bytes=sent_bytes
    )
    issued, waited = wall - max(wait_s, seconds), wall - wait_s
    meter.exchange((issued, cpu, event), (waited, cpu, event), traffic)


def test_step_totals_are_the_sums_of_the_step() -> None:
    """Features are summed exactly per kind, seconds and waits by their clocks."""
    observer: Observer = StepMeter()
    meter = observer
    assert isinstance(meter, StepMeter)
    meter.begin(two_sequence_layout(step=7, policy_version=3))
    note(meter, (1, 10, 20, 30, 4, 0), wall_s=1000.0)
    note(meter, (2, 1, 2, 3, 4, 5), wall_s=500.0)
    note(meter, (1, 5, 5, 15, 1, 0), kind=BACKWARD, wall_s=2000.0)
    for wait_s, sent_bytes in ((200.0, 1000), (100.0, 24)):
        exchange(meter, sent_bytes, wait_s=wait_s, seconds=1000.0)
    meter.mismatch()

    totals = meter.end_step(400.0)

    assert totals is not None
    assert (totals.step, totals.policy_version, totals.seconds) == (7, 3, 400.0)
    assert {k.kind: k.features for k in totals.kernels} == {
        FORWARD: (3.0, 11.0, 22.0, 33.0, 8.0, 5.0),
        BACKWARD: (1.0, 5.0, 5.0, 15.0, 1.0, 0.0),
    }
    # The machine may take its time for each call, but adds no less than was asked for.
    seconds = {k.kind: k.seconds for k in totals.kernels}
    assert 1500.0 <= seconds[FORWARD] < 1900.0
    assert 2000.0 <= seconds[BACKWARD] < 2400.0
    assert totals.sent_bytes == 1024
    assert 300.0 <= totals.wait_seconds < 390.0
    assert totals.plan_mismatches == 1
    assert meter.end_step() is None


def test_a_step_starts_from_nothing() -> None:
    """What one step did, and calls between steps, are not counted in the next."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    note(meter, wall_s=1000.0)
    exchange(meter, 10, wait_s=1.0)
    meter.mismatch()
    meter.end_step()
    note(meter, kind=BACKWARD)

    meter.begin(two_sequence_layout(step=1))
    note(meter, (1,) * 6, wall_s=1.0)
    totals = meter.end_step()

    assert totals is not None
    assert [(k.kind, k.features) for k in totals.kernels] == [(FORWARD, (1.0,) * 6)]
    assert (totals.sent_bytes, totals.plan_mismatches) == (0, 0)
    assert 1.0 <= meter.kernel_wall_seconds < 1000.0


def test_another_step_number_closes_the_step() -> None:
    """A training script that never calls end_step still gets each step, once."""
    closed: list[StepTotals] = []
    meter = StepMeter(sink=closed.append)
    for step in (4, 4, 5, 6):
        meter.begin(two_sequence_layout(step=step))
        note(meter)

    assert [(totals.step, totals.kernels[0].features[0]) for totals in closed] == [(4, 2), (5, 1)]
    assert all(0 < totals.seconds < 60 for totals in closed)


def test_home_features_count_each_micro_batch_once() -> None:
    """Layers begin the same layout again and again; plain Ulysses' work is not multiplied."""
    meter = StepMeter()
    layouts = [two_sequence_layout(step=0, micro_batch=i, place=i) for i in (0, 1)]
    for layout in (*layouts, *layouts):
        meter.begin(layout)

    totals = meter.end_step()

    assert totals is not None
    # One document of 512 tokens and four of 128: n, tokens twice, L (L + 1) / 2 pairs each, blocks
    # of 64 rows and rows beyond 192.
    assert totals.home_features == (5, 1024, 1024, sum(PAIRS), 16, 320)


def test_home_pairs_are_told_by_micro_batch() -> None:
    """Each micro-batch has its place, whatever the order; those beyond the bound are left out."""
    meter = StepMeter()
    numbers = [(2, 0), (0, 1), (2, 0), (MAX_MICRO_BATCHES, 0), (10**9, 1)]
    for micro_batch, place in numbers:
        meter.begin(two_sequence_layout(step=0, micro_batch=micro_batch, place=place))
    bounded = meter.end_step()
    meter.begin(two_sequence_layout(step=1, micro_batch=MAX_MICRO_BATCHES - 1))
    longest = meter.end_step()

    assert bounded is not None
    assert bounded.home_pairs == [PAIRS[1], 0.0, PAIRS[0]]
    assert bounded.home_features[3] == 2 * PAIRS[0] + 2 * PAIRS[1]
    assert longest is not None
    assert len(longest.home_pairs) == MAX_MICRO_BATCHES


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_the_clock_asked_for_is_reported_and_both_are_kept(clock: str) -> None:
    """Wall and CPU seconds of the kernels stand side by side, so that noise can be seen."""
    meter = StepMeter("cpu" if clock == "cpu" else "wall")
    meter.begin(two_sequence_layout(step=0))
    note(meter, wall_s=1000.0, cpu_s=400.0)
    totals = meter.end_step()

    assert totals is not None
    wall_s, cpu_s = meter.kernel_wall_seconds, meter.kernel_cpu_seconds
    assert 400.0 <= cpu_s < 500.0
    assert 1000.0 <= wall_s < 1400.0
    assert totals.kernels[0].seconds == (cpu_s if clock == "cpu" else wall_s)


def test_moments_hold_every_sound_call_once() -> None:
    """Over several folds and takings the sums are those of all calls after the warm-up."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    taken = Moments()
    expected = np.zeros(6)
    for index in range(2 * FOLD_ROWS + 10):
        features = (1, index, 2 * index, 3 * index, index, 0)
        note(meter, features, wall_s=1000.0)
        expected += np.array(features) ** 2 * (index >= WARM_UP_CALLS)
        if index == FOLD_ROWS + 5:
            taken.merge(Moments(meter.take_moments()[0].sums))
    meter.end_step()
    taken.merge(Moments(meter.take_moments()[0].sums))

    assert taken.count == 2 * FOLD_ROWS + 10 - WARM_UP_CALLS
    assert meter.set_aside == WARM_UP_CALLS
    assert taken.gram.diagonal() * 1000.0 == pytest.approx(expected, rel=0.05)
    assert meter.take_moments() == []


def test_points_are_few_real_and_reproducible() -> None:
    """A report holds at most 32 raw points, calls that took place, the same for the same seed."""
    chosen = []
    for seed in (1, 1, 2):
        meter = StepMeter(seed=seed)
        for index in range(1000):
            note(meter, (1, index, 0, 0, 0, 0), wall_s=1000.0)
        chosen.append([point[1] for point in meter.take_moments()[0].points])

    assert len(chosen[0]) == len(set(chosen[0])) == MAX_POINTS
    assert chosen[0] == chosen[1] != chosen[2]
    assert max(chosen[0]) > 500


def test_taking_from_another_thread_loses_nothing() -> None:
    """The reporter takes while training folds; each sound call is in exactly one of its takings, or
    counted where training makes calls faster than they can be judged.
    """
    meter = StepMeter()
    done = threading.Event()
    counts: list[float] = []

    def take() -> None:
        while not done.is_set():
            counts.extend(kind.sums[0] for kind in meter.take_moments())

    taker = threading.Thread(target=take)
    taker.start()
    noted, deadline_s = 0, time.monotonic() + 60
    # As long as it takes the scheduler to let both threads run by turns.
    while len(counts) < 20 and time.monotonic() < deadline_s:
        for _ in range(FOLD_ROWS):
            note(meter, wall_s=1000.0)
        noted += FOLD_ROWS
    done.set()
    taker.join()
    assert len(counts) >= 20
    counts.extend(kind.sums[0] for kind in meter.take_moments())

    assert sum(counts) + meter.set_aside + meter.dropped == noted


def test_a_hiccup_is_in_the_step_and_not_in_the_moments() -> None:
    """A preempted kernel held its rank up, and says nothing of what its tiles cost."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    for index in range(WARM_UP_CALLS + MIN_CALLS + 1):
        note(meter, wall_s=1000.0 if index == MIN_CALLS else 10.0)
    totals = meter.end_step()
    (taken,) = meter.take_moments()

    assert totals is not None
    assert totals.kernels[0].seconds > 1000.0 + 10.0 * MIN_CALLS
    assert totals.kernels[0].features[0] == WARM_UP_CALLS + MIN_CALLS + 1
    assert taken.sums[0] == MIN_CALLS
    assert taken.sums[1] < 20.0 * MIN_CALLS
    assert max(point[-1] for point in taken.points) < 20.0
    assert meter.set_aside == WARM_UP_CALLS + 1


def test_a_guard_that_fails_costs_readings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with a reading, nothing is raised into training, and it is counted."""
    monkeypatch.setattr("libra.agent.guard.Guard.sift", lambda *_: 1 / 0)
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    note(meter, wall_s=1.0)
    totals = meter.end_step()

    assert totals is not None
    assert totals.kernels[0].seconds >= 1.0
    assert meter.take_moments() == []
    assert meter.dropped == 1


def test_pending_calls_stay_few() -> None:
    """However many calls a step makes, the meter holds no more than a fold of them."""
    meter = StepMeter()
    for _ in range(3 * FOLD_ROWS - 1):
        note(meter)

    assert len(meter._calls[FORWARD].rows) == FOLD_ROWS - 1


def test_kinds_are_bounded() -> None:
    """More kinds than a report may carry are counted as dropped, not gathered."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    for head_dim in range(MAX_KINDS + 3):
        note(meter, kind=replace(FORWARD, head_dim=head_dim))
    totals = meter.end_step()

    assert totals is not None
    assert len(totals.kernels) == MAX_KINDS
    assert meter.dropped == 3


def test_host_clocks_do_not_time_other_devices(caplog: pytest.LogCaptureFixture) -> None:
    """A launch time never passes for a kernel's cost; it is refused, counted and told once."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    for _ in range(2):
        note(meter, kind=replace(FORWARD, device="xpu"))
    for _ in range(100):
        exchange(meter, 1 << 20, wait_s=1.0, device="xpu")
    totals = meter.end_step()

    assert totals is not None
    assert totals.kernels == []
    assert meter.take_waves() == []
    assert meter.dropped == 2
    assert caplog.text.count("nothing here can time them") == 1


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_broken_duration_is_replaced(seconds: float) -> None:
    """One bad figure from the training script does not cost the whole report."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    totals = meter.end_step(seconds)

    assert totals is not None
    assert 0 <= totals.seconds < 60


def test_figures_that_no_report_may_carry_are_dropped() -> None:
    """A call or step of hours is a broken clock; it is counted and kept from the balancer."""
    closed: list[StepTotals] = []
    meter = StepMeter(sink=closed.append)
    meter.begin(two_sequence_layout(step=0))
    note(meter, wall_s=1e5)
    assert meter.end_step(1e5) is None

    assert meter.dropped == 2
    assert closed == []
    assert meter.take_moments() == []


def test_an_unknown_clock_is_refused() -> None:
    """The message names the setting, its value and what is allowed."""
    with pytest.raises(ValueError, match=r"clock='sundial': must be 'wall' or 'cpu'"):
        StepMeter("sundial")  # type: ignore[arg-type]
