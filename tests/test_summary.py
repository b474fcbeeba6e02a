"""What a demo says of its pairs: honest figures, and doubt where there is reason for it."""

from typing import Any

import msgspec
import pytest

from libra.examples.pairs import Pair, Run, append_pair, percentile, read_pairs
from libra.examples.summary import disagreement, summarise


def run(step_seconds: float, kernels: list[float], *, waited: float = 1.0, **changes: Any) -> Run:
    """A run of two ranks; the first's kernels took ``waited`` times their CPU time."""
    run = Run(
        step_seconds=step_seconds,
        kernel_seconds=kernels,
        wait_seconds=[0.0, 0.5],
        kernel_wall_seconds=[waited * kernels[0], kernels[1]],
        kernel_cpu_seconds=kernels,
        sent_bytes=10,
    )
    return msgspec.structs.replace(run, **changes)


def pair(step: int = 0, **changes: Any) -> Pair:
    """A step of 10 s with 2 s to save, of which Libra saved 1 s."""
    pair = Pair(
        step=step,
        warmup=False,
        policy_version=1,
        first="baseline",
        loss=5.0,
        loss_difference=1e-7,
        gradient_difference=1e-6,
        baseline=run(10.0, [6.0, 2.0]),
        libra=run(9.0, [4.0, 4.0]),
    )
    return msgspec.structs.replace(pair, **changes)


def test_figures_follow_their_definitions() -> None:
    """Skew is max over mean; gains are ratios of sums; warm-up pairs count for noise alone."""
    warmup = pair(0, warmup=True, policy_version=0, libra=run(10.0, [6.0, 2.0]))
    longer = pair(2, baseline=run(30.0, [5.0, 5.0]), libra=run(30.0, [5.0, 5.0]))
    policies = [{"version": 1, "reason": "uneven"}, {"version": 2, "reason": "not yet in force"}]

    summary = summarise([warmup, pair(1), longer], clock="wall", wanted=2, policies=policies)

    assert summary["baseline"]["skew"] == {"mean": 1.25, "p95": 1.5, "worst": 1.5}
    assert summary["libra"]["skew"] == {"mean": 1.0, "p95": 1.0, "worst": 1.0}
    assert summary["baseline"]["step_seconds"] == {"median": 10.0}
    assert summary["speedup"] == pytest.approx(40 / 39)
    assert summary["perfect_speedup"] == pytest.approx(40 / 38)
    assert summary["gain_share"] == pytest.approx(0.5)
    assert summary["exchange_share"] == pytest.approx(1 / 39)
    assert summary["policies"] == [{"version": 1, "first_step": 1, "reason": "uneven"}]
    assert summary["noise"]["warmup_speedup"] == 1.0
    assert (summary["pairs"], summary["warmup_pairs"], summary["ranks"]) == (2, 1, 2)
    assert summary["verdict"] == "ok"


def test_unsteady_pairs_do_not_count() -> None:
    """A pair whose kernels waited, or whose two runs' total work took unequally long, is out."""
    calm = pair()
    waited = pair(libra=run(9.0, [4.0, 4.0], waited=1.1))
    drifted = pair(libra=run(5.0, [3.0, 3.0]))

    summary = summarise([calm, calm, calm, calm, waited, drifted], clock="wall", wanted=4)
    by_cpu = summarise([waited, drifted], clock="cpu", wanted=1)

    assert (summary["pairs"], summary["noise"]["unsteady_pairs"]) == (4, 2)
    assert summary["speedup"] == pytest.approx(10 / 9)
    assert summary["noise"]["speedup_of_all_pairs"] == pytest.approx(60 / 50)
    assert summary["verdict"] == "ok"
    assert (by_cpu["pairs"], by_cpu["noise"]["unsteady_pairs"]) == (1, 1)


def test_an_unsteady_machine_is_inconclusive() -> None:
    """When more than a third of the pairs do not count, no figure is to be believed."""
    calm, busy = pair(), pair(libra=run(9.0, [4.0, 4.0], waited=1.1))

    third = summarise([calm, calm, busy], clock="wall", wanted=2)
    half = summarise([calm, calm, busy, busy], clock="wall", wanted=2)

    assert third["verdict"] == "ok"
    assert half["verdict"].startswith("inconclusive: in 2 of 4 pairs")


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([], "inconclusive: no policy took effect in time"),
        ([pair(warmup=True)], "inconclusive: no policy took effect in time"),
        ([pair()], "inconclusive: only 1 of 4 pairs were measured in time"),
    ],
)
def test_too_few_pairs_are_inconclusive(pairs: list[Pair], verdict: str) -> None:
    """A run that time cut short says so, and leaves unknown figures empty."""
    assert summarise(pairs, clock="cpu", wanted=4)["verdict"] == verdict


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("loss", pair(warmup=True, loss_difference=3e-5)),
        ("gradient", pair(gradient_difference=3e-5)),
    ],
)
def test_other_numerics_are_a_failure(name: str, wrong: Pair) -> None:
    """A difference above float32's tolerance is named, in warm-up too."""
    same = summarise([pair()], clock="cpu", wanted=1)
    other = summarise([pair(), wrong, pair()], clock="cpu", wanted=3)

    assert disagreement(same) is None
    assert f"largest {name} difference" in str(disagreement(other))


def test_a_torn_line_is_not_read(tmp_path: Any) -> None:
    """Whole lines of a killed job are all there; what it was writing is left out."""
    path = tmp_path / "pairs.jsonl"
    assert read_pairs(path) == []
    append_pair(path, pair(0))
    append_pair(path, pair(1))
    path.write_bytes(path.read_bytes() + b'{"step": 2')

    assert read_pairs(path) == [pair(0), pair(1)]


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: no value is made up between two."""
    values = [3.0, 1.0, 2.0, 4.0]

    assert [percentile(values, percent) for percent in (0, 50, 95, 100)] == [1.0, 2.0, 4.0, 4.0]
