"""The placement benchmark prints what it promises, and the same twice."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.comparison import compare_sequences
from benchmarks.placement_case import PlacementCase, drawn_steps
from benchmarks.placement_figures import at_bound, bound_of, in_order, measure_placement
from libra.balancer.placement import place
from tests.benchmark_runs import figures_of, run_benchmark

SIZE = ("--tokens", "4096", "--batch", "16", "--pool", "4", "--steps", "3", "--seed", "5")


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def test_placement_prints_one_object() -> None:
    """Evenness, bound and seconds are there under their names, finite and in order."""
    found = figures_of("--lengths", "libra-like", *SIZE)

    assert set(found["imbalance"]) == {"mean", "median", "p95", "max"}
    assert found["imbalance"]["median"] <= found["imbalance"]["p95"] <= found["imbalance"]["max"]
    assert 0 <= found["bound"]["mean"] <= found["imbalance"]["mean"] <= found["in_order"]["mean"]
    assert found["above_bound"]["mean"] == pytest.approx(
        found["imbalance"]["mean"] - found["bound"]["mean"]
    )
    assert found["seconds"]["median"] > 0
    assert found["pool_sizes"] == {"4": 4 * 3}
    assert 0 <= found["within_0.1_percent"] <= 1
    assert all(map(math.isfinite, _numbers(found)))


def test_elastic_pools_are_shown_beside_fixed_ones() -> None:
    """Both evennesses and what ranks send under each; they never exceed the largest pool."""
    found = figures_of("--lengths", "wikipedia", *SIZE, "--elastic", "16")

    assert found["imbalance"]["mean"] <= found["fixed"]["imbalance"]["mean"] + 1e-12
    assert {int(size) for size in found["pool_sizes"]} <= {4, 8, 16}
    assert sum(int(size) * count for size, count in found["pool_sizes"].items()) == 16 * 3
    for key in ("mean", "busiest"):
        assert found["fixed_bytes"][key] > 0
        assert found["bytes_ratio"][key] == pytest.approx(
            found["bytes"][key] / found["fixed_bytes"][key]
        )


def test_a_seed_gives_the_same_figures_again() -> None:
    """All but seconds depend on the arguments alone, and another seed draws other documents."""
    first, again, other = (
        measure_placement(_case(seed=seed, elastic=8, exchange=True)) for seed in (3, 3, 4)
    )
    for found in (first, again, other):
        del found["seconds"]

    assert first == again
    assert first != other


def test_fixed_pools_are_placed_by_the_product() -> None:
    """Figures are those of the placement that the sampler makes, also where P does not divide."""
    case = _case(pool=5, batch=16)
    found: dict[str, Any] = measure_placement(case)

    own = [place(step.costs, (5, 5, 5, 1)) for step in drawn_steps(case)]
    assert found["imbalance"]["max"] == max(placed.imbalance for placed in own)
    assert found["pool_sizes"] == {"1": case.steps, "5": 3 * case.steps}


def test_the_bound_is_what_the_best_placement_reaches() -> None:
    """It is zero where cells can be equal, and the largest sequence's share where it is alone."""

    def bound(costs: list[int], cells: list[int]) -> float:
        return bound_of(np.array(costs), place(costs, cells))

    assert bound([3, 3, 2, 2, 1, 1], [3, 3]) == 0
    assert bound([90, 1, 1, 1, 1, 1], [3, 3]) == pytest.approx((90 + 2) / 3 / (95 / 6) - 1)
    assert bound([4, 1, 1], [2, 1]) == pytest.approx(place([4, 1, 1], [2, 1]).imbalance)


def test_steps_at_the_bound_are_within_a_thousandth() -> None:
    """The share counts those whose heaviest cell is at most 0.1 % above the bound's."""
    assert at_bound([0.0009, 0.0011, 1.0], [0.0, 0.0, 0.9999]) == pytest.approx(2 / 3)


def test_in_order_takes_sequences_as_they_come() -> None:
    """Cells of unequal size compare by cost per slot."""
    assert in_order(np.array([3, 3, 4]), (2, 1)) == pytest.approx(4 / (10 / 3) - 1)


@pytest.mark.parametrize("cost", ["flops", "sum-l2", "1e-5,1e-6,1e-6,1e-8,1e-6,1e-7"])
def test_costs_are_those_of_the_documents(cost: str) -> None:
    """Every sequence is full, and its cost is the sum of its documents' prices."""
    step = next(drawn_steps(_case(cost=cost)))

    parts = step.cell(np.arange(16))
    assert [int(part.sum()) for part in parts] == [4096] * 16
    if cost == "sum-l2":
        assert step.costs.tolist() == [int((part**2).sum()) for part in parts]
    # More squared tokens are more cost, whatever the unit.
    ranks = [np.argsort(values) for values in (step.costs, [(part**2).sum() for part in parts])]
    assert ranks[0][-1] == ranks[1][-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "nothing"), "lengths=nothing: must be a file or one of libra, "),
        (("--lengths", "sft", "--batch", "0"), "batch=0: must be at least 1"),
        (("--lengths", "sft", "--pool", "32"), "pool=32: must be in 1..batch=16"),
        (("--lengths", "sft", "--elastic", "12"), "elastic=12: must be 0 or pool=4 doubled"),
        (("--lengths", "sft", "--elastic", "32"), "elastic=32: must be 0 or pool=4 doubled"),
        (("--lengths", "sft", "--tokens", "-1"), "tokens=-1: must be in 1.."),
        (("--lengths", "sft", "--pool", "32", "--compare"), "pool=32: must be in 1..batch=16"),
        (("--lengths", "sft", "--seed", "-1", "--compare"), "seed=-1: must be at least 0"),
        (("--lengths", "sft", "--elastic", "12", "--compare"), "elastic=12: must be 0 or pool=4"),
        (("--lengths", "sft", "--steps", "0"), "steps=0: must be at least 1"),
        (("--lengths", "sft", "--cost", "cheap"), "cost=cheap: must be flops, sum-l2 or"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    """A user's mistake ends with code 2 and one line that names the option and its value."""
    done = run_benchmark("placement", *SIZE, *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_table_is_printed_without_json() -> None:
    """All ways to place are compared on the same steps, and the bound holds for each."""
    done = run_benchmark(
        "placement", "--lengths", "wlb", *SIZE, "--compare", "--document-steps", "2"
    )

    assert not done.returncode, done.stderr
    for name in ("imbalance", "Libra", "Karmarkar-Karp", "WLB-LLM, outlier queue", "Megatron"):
        assert name in done.stdout


WLB, MEGATRON = "WLB-LLM, outlier queue", "Megatron, dynamic CP, {} tokens a rank"


@pytest.mark.parametrize(
    ("arguments", "refusals"),
    [
        ("--tokens 1 --batch 1 --pool 1", {WLB: "thresholds=(0, 0): must rise"}),
        ("--tokens 3 --batch 4 --pool 2", {WLB: "thresholds=(0, 1): must rise"}),
        ("--tokens 64 --batch 1 --pool 1", {MEGATRON.format(1): "needs 64 of 8 ranks"}),
        (
            "--tokens 512 --batch 1 --pool 1 --elastic 1",
            {MEGATRON.format(8): "needs 64 of 8 ranks"},
        ),
        ("--tokens 512 --batch 8 --pool 4 --elastic 8", {}),
    ],
)
def test_a_way_that_cannot_do_a_case_says_so(
    arguments: str, refusals: dict[str, str], tmp_path: Path
) -> None:
    """Its row says why, and all other figures stand, finite."""
    path = tmp_path / "own.txt"
    path.write_text("600\n")
    case = ("--lengths", str(path), "--steps", "2", *arguments.split())
    found = figures_of(*case, "--compare")
    reasons = {}
    for row in found["comparators"] + found["document_comparators"]:
        name = row.get("whole sequences") or row["documents"]
        reasons[name] = row.get("why not", "")
        if reasons[name]:
            assert not list(_numbers(row))
        else:
            assert None not in row.values()

    for name, reason in reasons.items():
        assert refusals.get(name, "") in reason
    assert {name for name, reason in reasons.items() if reason} == set(refusals)
    assert all(map(math.isfinite, _numbers(found)))
    assert "why not" in run_benchmark("placement", *case, "--compare").stdout or not refusals


def test_steps_of_unequal_pools_are_compared_as_far_as_it_goes() -> None:
    """Only Libra places into pools of which the last is smaller; it is never worse than its bound.

    The others are not given other pools without a word.
    """
    case = _case(pool=4, batch=6)
    libra, *others = compare_sequences(case)

    own = [place(step.costs, (4, 2)).imbalance for step in drawn_steps(case)]
    assert libra["mean"] == pytest.approx(np.mean(own))
    assert float(libra["above bound"] or 0) >= -1e-9
    assert others
    for row in others:
        assert row["mean"] is None
        assert "batch=6: must be a multiple of pool=4" in str(row["why not"])


def _case(**settings: Any) -> PlacementCase:
    default: dict[str, Any] = {"lengths": "wlb", "tokens": 4096, "batch": 16, "pool": 4, "steps": 3}
    return PlacementCase(**{**default, **settings})


def test_steps_of_several_micro_batches_are_told_by_when_ranks_meet() -> None:
    """Libra is nearest perfect balance; meeting once a step it needs no tiles with many of them."""
    found = figures_of(
        "steps", "--lengths", "libra-like", "--tokens", "65536", "--batch", "64", "--dp", "8",
        "--pool", "4", "--elastic", "8", "--steps", "5",
    )  # fmt: skip
    steps = {row["placed by"]: row for row in found["rows"]}
    mean = {name: row["step / perfect, mean"] for name, row in steps.items()}

    assert 1 <= mean["Libra"] <= mean["pools, even cells"] <= mean["plain Ulysses, in order"]
    assert mean["Libra, pools up to 8"] <= mean["Libra"] + 1e-12
    assert mean["plain Ulysses, sorted into micro-batches"] < mean["plain Ulysses, in order"]
    assert 1 <= mean["meeting once a step: Libra"] < 1.05
    assert steps["meeting once a step: Libra"]["tiles move"] < 1


def test_steps_must_fill_whole_micro_batches() -> None:
    """CP groups that do not divide the step are an error in one line."""
    done = run_benchmark(
        "placement", "steps", "--lengths", "libra-like", "--batch", "64", "--dp", "9"
    )

    assert done.returncode == 2
    assert "num_sequences=64: must be a multiple of dp=9" in done.stderr
    assert len(done.stderr.splitlines()) == 1
