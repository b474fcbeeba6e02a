"""Benchmarks count bytes, bounds and gains rightly, and run as documented."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.layer import FIGURES
from benchmarks.plans import block_bound, held_share, sent_vectors, ulysses_vectors
from benchmarks.runs import Runs, gains, ratio
from benchmarks.tables import table
from libra.attention.heads import HeadRun, HeadSplit
from libra.attention.plan import Plan
from libra.attention.tiles import Tile, Tiles
from libra.attention.waves import Moves

ROOT = Path(__file__).parents[1]


def _plan() -> Plan:
    """Rows 400 to 800 of the first document, both query heads of one kv head, go from 0 to 1."""
    lengths = (np.array([800]), np.array([300, 500]))
    tiles = Tiles.rows([Tile(0, 0, 2, 0, 1, row_begin=400, row_end=800)])
    moves = Moves(source=np.array([0]), target=np.array([1]), wave=np.array([0]), tiles=tiles)
    return Plan(
        lengths=lengths,
        runs=((HeadRun(0, 2, 0, 1),),),
        moves=moves,
        cut={},
        load_ticks=np.array([2_000_000, 4_000_000]),
        home_ticks=np.array([3_000_000, 3_000_000]),
        limit="tolerance",
    )


def test_bytes_of_a_move_are_counted_at_both_ends() -> None:
    """Home sends q, k, v and the output's gradient; the other sends the output, dq, dk and dv."""
    queries, keys = 400 * 2, 800

    sent = sent_vectors(_plan())

    assert sent.tolist() == [queries + 2 * keys + queries] * 2


def test_bytes_of_ulysses_are_what_leaves_a_rank() -> None:
    """Of 8 query and 2 kv heads over 2 ranks, half of the heads leave each rank each time."""
    tokens = 16
    own = tokens // 2
    there, back = own * (4 + 1 + 1), own * 4

    assert ulysses_vectors(HeadSplit(query_heads=8, kv_heads=2, cp=2), tokens) == 2 * (there + back)


def test_bytes_of_ulysses_on_one_rank_are_all_of_a_layer() -> None:
    """Where Ulysses sends nothing, moves are compared with q, k, v, the output and gradients."""
    everything = 2 * 16 * (8 + 2 + 2 + 8)

    assert ulysses_vectors(HeadSplit(query_heads=8, kv_heads=2), 16) == everything


def test_the_block_bound_is_the_dearest_block_beside_the_mean() -> None:
    """The last 100 rows of the longest document, times query heads of a kv head."""
    pairs = sum(range(701, 801))
    # The default cost is 1 ns a pair, in units of 2**-50 s, and a tick is 2**20 of these.
    ticks_per_pair = round(1e-9 * 2**50) / 2**20

    bound = block_bound(_plan(), 100)

    assert bound == pytest.approx(1 + 2 * pairs * ticks_per_pair / 3_000_000, rel=1e-6)


def test_what_a_bin_holds_is_its_own_and_what_it_received() -> None:
    """Both bins hold 800 tokens of 2 query and 1 kv heads; one received 400 rows, 800 keys."""
    assert held_share(_plan()) == pytest.approx(1 + (400 * 2 + 800) / (800 * 3))


def _runs(seconds: list[list[list[float]]], cpu_share: float = 1.0) -> Runs:
    """Return runs whose kernels take all of the [R, N, V] seconds."""
    own = np.array(seconds)
    figures = np.zeros((*own.shape, len(FIGURES)))
    for name in ("seconds", "kernel_wall_s"):
        figures[..., FIGURES.index(name)] = own
    figures[..., FIGURES.index("kernel_cpu_s")] = own * cpu_share
    return Runs(figures)


def test_gains_are_ratios_of_sums() -> None:
    """Speed-up, the perfect one and their quotient follow from slowest ranks and mean ranks."""
    # Two ranks, two packs; plain Ulysses, Libra, plain Ulysses again.
    runs = _runs([[[3.0, 2.0, 3.0], [1.0, 1.3, 1.0]], [[1.0, 2.2, 1.0], [1.0, 1.2, 1.0]]])

    found = gains(runs, 1, (0, 2))

    assert found["speed-up"] == pytest.approx((3 + 1) / (2.2 + 1.3))
    assert found["perfect"] == pytest.approx((3 + 1) / (2 + 1))
    assert found["share"] == pytest.approx((2 + 1) / (2.2 + 1.3))
    assert found["skew before"] == pytest.approx((1.5 + 1) / 2)
    assert (found["slower"], found["noise"]) == (1, 0)


def test_packs_within_the_noise_do_not_count_as_slower() -> None:
    """A loss smaller than plain Ulysses' own scatter is none."""
    runs = _runs([[[1.0, 1.2, 1.3]], [[1.0, 1.2, 1.3]]])

    assert gains(runs, 1, (0, 2))["slower"] == 0


@pytest.mark.parametrize(
    ("seconds", "cpu_share", "steady"),
    [([1.0, 1.05], 1.0, True), ([1.0, 1.05], 0.9, False), ([1.0, 1.2], 1.0, False)],
    ids=["steady", "waited for a core", "changed its speed"],
)
def test_packs_that_met_other_programs_are_told_apart(
    seconds: list[float], cpu_share: float, steady: bool
) -> None:
    """Kernels that waited, or whose total changed from run to run, make a pack unsteady."""
    runs = _runs([[seconds], [seconds]], cpu_share)

    assert runs.steady().tolist() == [steady]
    assert len(runs.only(runs.steady())) == int(steady)


def test_the_error_of_a_ratio_is_that_of_its_packs() -> None:
    """Packs of one ratio have no error, however unequal; one pack has none that is known."""
    under = np.array([1.0, 2.0, 4.0])

    assert ratio(3 * under, under) == (3.0, 0.0)
    assert ratio(under[:1], under[:1]) == (1.0, None)
    assert (ratio(under + np.array([0.1, -0.1, 0]), under)[1] or 0) > 0


def test_a_table_has_every_name_of_any_row() -> None:
    """Rows that lack a figure show that they do."""
    lines = table([{"name": "a", "x": 1}, {"name": "b", "y": 0.5}]).splitlines()

    assert [line.replace(" ", "") for line in lines[0:1] + lines[2:]] == [
        "|name|x|y|",
        "|a|1|-|",
        "|b|-|0.500|",
    ]
    assert len({len(line) for line in lines}) == 1


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "benchmarks/attention.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_plan_prints_one_object() -> None:
    """``plan --json`` has every figure of evenness, bytes and seconds under its own name."""
    size = ("--tokens", "8192", "--pool", "2", "--cp", "2", "--packs", "3")
    done = _run("plan", "--lengths", "long-tailed", *size, "--json")

    assert not done.returncode, done.stderr
    figures = json.loads(done.stdout)
    spread = {"median", "p99", "max"}
    assert set(figures) == {
        "max_over_mean",
        "bytes_ratio",
        "seconds",
        "packs",
        "share_within_1.02",
        "over_block_bound",
        "home_max_over_mean",
        "moves",
        "limits",
    }
    assert set(figures["max_over_mean"]) == set(figures["home_max_over_mean"]) == spread
    assert set(figures["bytes_ratio"]) == {"mean", "busiest"}
    assert figures["packs"] == sum(figures["limits"].values()) == 3
    assert 1 <= figures["max_over_mean"]["median"] <= figures["home_max_over_mean"]["median"]


SMALL = ("--heads", "2/1", "--head-dim", "16", "--tokens", "512", "--packs", "2", "--json")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plans", ("--quick", "--json")),
        ("planner-time", ("--quick", "--json")),
        ("kernels", SMALL),
        pytest.param("step", SMALL, marks=pytest.mark.dist),
        pytest.param("memory", SMALL, marks=pytest.mark.dist),
    ],
)
def test_benchmarks_print_rows(name: str, options: tuple[str, ...]) -> None:
    """Each prints a JSON list of rows whose ratios, where there are any, are above zero."""
    done = _run(name, *options)

    assert not done.returncode, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    ratios = ("max/mean", "median ms", "planned / uncut", "speed-up", "median")
    found = [row[key] for row in rows for key in ratios if key in row]
    assert found
    assert min(found) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--lengths", "nothing"), "lengths=nothing: must be a file or one of"),
        (("plans", "--quick", "--memory-permille", "1"), "memory_permille=1: must be"),
        (("step", "--heads", "8"), "8: must be H/G"),
        (("planner-time", "--cells", "0"), "0: must be at least 1"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    """A user's mistake is no traceback: it names the option, its value and what is allowed."""
    done = _run(*arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
