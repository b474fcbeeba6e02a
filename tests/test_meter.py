"""The meter tells what happened: every call once, in the right step, on the clock asked for."""

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from libra.agent.meter import FOLD_ROWS, MAX_KINDS, MAX_POINTS, StepMeter
from libra.attention.observer import KernelKind, Observer
from libra.balancer.moments import Moments
from libra.balancer.wire import StepTotals
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


def note(
    meter: StepMeter,
    features: tuple[int, int, int, int] = (1, 2, 3, 4),
    *,
    kind: KernelKind = FORWARD,
    wall_s: float = 0.0,
    cpu_s: float = 0.0,
) -> None:
    """Note a call that began so long ago on either clock."""
    wall, cpu = meter.start()
    meter.kernel((wall - wall_s, cpu - cpu_s), kind, features)


def test_step_totals_are_the_sums_of_the_step() -> None:
    """Features are summed exactly per kind, seconds and waits by their clocks."""
    observer: Observer = StepMeter()
    meter = observer
    assert isinstance(meter, StepMeter)
    meter.begin(two_sequence_layout(step=7, policy_version=3))
    note(meter, (1, 10, 20, 30), wall_s=1000.0)
    note(meter, (2, 1, 2, 3), wall_s=500.0)
    note(meter, (1, 5, 5, 15), kind=BACKWARD, wall_s=2000.0)
    for wait_s, sent_bytes in ((200.0, 1000), (100.0, 24)):
        wall, cpu = meter.start()
        meter.exchange((wall - wait_s, cpu), sent_bytes)
    meter.mismatch()

    totals = meter.end_step(400.0)

    assert totals is not None
    assert (totals.step, totals.policy_version, totals.seconds) == (7, 3, 400.0)
    assert {k.kind: k.features for k in totals.kernels} == {
        FORWARD: (3.0, 11.0, 22.0, 33.0),
        BACKWARD: (1.0, 5.0, 5.0, 15.0),
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
    meter.exchange(meter.start(), 10)
    meter.mismatch()
    meter.end_step()
    note(meter, kind=BACKWARD)

    meter.begin(two_sequence_layout(step=1))
    note(meter, (1, 1, 1, 1), wall_s=1.0)
    totals = meter.end_step()

    assert totals is not None
    assert [(k.kind, k.features) for k in totals.kernels] == [(FORWARD, (1.0, 1.0, 1.0, 1.0))]
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
    # One document of 512 tokens and four of 128: n, tokens twice, L (L + 1) / 2 pairs each.
    assert totals.home_features == (5, 1024, 1024, 512 * 513 // 2 + 4 * (128 * 129 // 2))


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


def test_moments_hold_every_call_once() -> None:
    """Over several folds and takings the sums are those of all calls, one by one."""
    meter = StepMeter()
    meter.begin(two_sequence_layout(step=0))
    taken = Moments()
    expected = np.zeros(4)
    for index in range(2 * FOLD_ROWS + 10):
        features = (1, index, 2 * index, 3 * index)
        note(meter, features, wall_s=1000.0)
        expected += np.array(features) ** 2
        if index == FOLD_ROWS + 5:
            taken.merge(Moments(meter.take_moments()[0].sums))
    meter.end_step()
    taken.merge(Moments(meter.take_moments()[0].sums))

    assert taken.count == 2 * FOLD_ROWS + 10
    assert taken.gram.diagonal() * 1000.0 == pytest.approx(expected, rel=0.05)
    assert meter.take_moments() == []


def test_points_are_few_real_and_reproducible() -> None:
    """A report holds at most 32 raw points, calls that took place, the same for the same seed."""
    chosen = []
    for seed in (1, 1, 2):
        meter = StepMeter(seed=seed)
        for index in range(1000):
            note(meter, (1, index, 0, 0))
        chosen.append([point[1] for point in meter.take_moments()[0].points])

    assert len(chosen[0]) == len(set(chosen[0])) == MAX_POINTS
    assert chosen[0] == chosen[1] != chosen[2]
    assert max(chosen[0]) > 500


def test_taking_from_another_thread_loses_nothing() -> None:
    """The reporter takes while training folds; each call is in exactly one of its takings."""
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
            note(meter)
        noted += FOLD_ROWS
    done.set()
    taker.join()
    assert len(counts) >= 20
    counts.extend(kind.sums[0] for kind in meter.take_moments())

    assert sum(counts) == noted


def test_pending_calls_stay_few() -> None:
    """However many calls a step makes, the meter holds no more than a fold of them."""
    meter = StepMeter()
    for _ in range(3 * FOLD_ROWS - 1):
        note(meter)

    assert len(meter._kinds[FORWARD].rows) == FOLD_ROWS - 1


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
        note(meter, kind=replace(FORWARD, device="cuda"))
    totals = meter.end_step()

    assert totals is not None
    assert totals.kernels == []
    assert meter.dropped == 2
    assert caplog.text.count("cannot time them") == 1


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
