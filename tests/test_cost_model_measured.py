"""The cost model's benchmark of real tiles and ranks judges rightly, and runs as documented."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import cost_model_job, cost_model_tiles
from benchmarks.cost_model_job import RankRun
from benchmarks.cost_model_job import judge as judge_job
from benchmarks.cost_model_tiles import judge, learning
from benchmarks.learning_curve import observations_needed, quantile, stays_from
from benchmarks.tile_times import TileSet, draw_tiles
from libra.attention.observer import Direction, KernelKind
from libra.balancer.moments import Moments
from libra.balancer.wire import Features, KernelTotals
from tests.benchmark_runs import ROOT, run_benchmark

# Seconds per tile, query token, key token, causal pair, block of rows and row of a long tile.
FORWARD = np.array([2e-6, 3e-7, 1e-7, 5e-9, 1e-6, 2e-7])
TRUTH = np.stack([FORWARD, 2 * FORWARD])
TILES = draw_tiles(whole=30, cut=30, longest=8192, seed=0)


def _seconds(tiles: TileSet, *, noise: float = 0.0, passes: int = 3) -> Any:
    """Return [N, n, 2] seconds that tiles of ``TRUTH`` take."""
    rng = np.random.default_rng(1)
    exact = tiles.features @ TRUTH.T
    return exact * rng.uniform(1 - noise, 1 + noise, (passes, *exact.shape))


def test_drawn_tiles_are_whole_documents_and_tails() -> None:
    """As many as asked of each, none longer than asked, tails in blocks of rows."""
    assert (int((~TILES.cut).sum()), int(TILES.cut.sum())) == (30, 30)
    assert TILES.keys.max() <= 8192
    assert not (TILES.rows[TILES.cut] % 32).any()
    with pytest.raises(ValueError, match="longest=256: must be more than 256 tokens"):
        draw_tiles(whole=1, cut=1, longest=256, seed=0)


def test_tiles_that_the_features_explain_are_predicted() -> None:
    """Forward, backward and both, whole and cut: the model misses nothing, FLOPs alone much."""
    found = judge(TILES, _seconds(TILES), seed=0)

    for kernel in ("both", "forward", "backward"):
        for which in ("whole", "cut"):
            assert found["libra"][kernel][which]["cost_weighted_error"] < 5e-3
            assert found["flops"][kernel][which]["mape"] > 0.05


def test_cut_and_whole_tiles_are_told_apart() -> None:
    """What only cut tiles cost shows in their errors and far less in those of whole ones."""
    seconds = _seconds(TILES)
    seconds[:, TILES.cut] *= np.random.default_rng(0).uniform(0.5, 1.5, (int(TILES.cut.sum()), 1))

    both = judge(TILES, seconds, seed=0)["libra"]["both"]

    assert both["cut"]["mape"] > 2 * both["whole"]["mape"]


def test_a_small_error_counts_from_where_it_stays_small() -> None:
    """A lucky early observation is no end of learning; an error that grows back has none."""
    assert stays_from([False, True, False, True, True]) == 4
    assert stays_from([True, True]) == 1
    assert stays_from([True, False]) is None


def test_orders_that_never_learn_count_as_longest() -> None:
    """Nine of ten orders are done when the ninth is; if two never are, there is no such number."""
    assert quantile([3, 1, 2, None], 0.75) == 3
    assert quantile([3, 1, None, None], 0.75) is None
    assert quantile(list(range(1, 11)), 0.9) == 9


def test_a_model_of_true_features_learns_and_one_of_chance_does_not() -> None:
    """Without noise the error stays small soon; seconds of pure chance are never predicted."""
    seconds = _seconds(TILES)
    chance = np.random.default_rng(2).uniform(1e-5, 1e-1, seconds.shape)

    needed = observations_needed(TILES.features, seconds, most=80, within=0.05, seed=0)

    assert needed is not None
    assert needed <= 60
    found = learning(TILES.features, chance, orders=2, seed=0)
    assert found == {"orders": 2, "median": None, "p90": None, "never": 2}


def _kind(direction: Direction) -> KernelKind:
    return KernelKind(
        device="cpu",
        backend="sdpa-cpu",
        dtype="float32",
        head_dim=64,
        group_heads=1,
        direction=direction,
    )


KINDS = (_kind("forward"), _kind("backward"))


def _rank_run(factor: float) -> RankRun:
    """Return a rank that learned from ``TILES``; its later step took ``factor`` times the truth."""
    seconds, features = _seconds(TILES)[0], TILES.features
    moments, totals = [], []
    for direction, kind in enumerate(KINDS):
        own = Moments()
        own.add(features, seconds[:, direction])
        moments.append((kind, own.sums.tolist()))
        one, two, three, four, five, six = features.sum(axis=0).tolist()
        summed: Features = (one, two, three, four, five, six)
        spent = factor * float(seconds[:, direction].sum())
        totals.append(KernelTotals(kind=kind, features=summed, seconds=spent))
    return RankRun(moments=moments, steps=[totals])


def test_rank_totals_are_judged_over_all_kinds_and_ranks() -> None:
    """A rank that took as long as predicted and one that took twice as long: a third is missed."""
    found = judge_job([_rank_run(1.0), _rank_run(2.0)])

    assert found["rank_steps"] == 2
    assert found["libra"]["cost_weighted_error"] == pytest.approx(1 / 3, abs=5e-3)
    assert found["libra"]["bias"] == pytest.approx(-1 / 3, abs=5e-3)
    assert found["libra"]["mape"] == pytest.approx(1 / 4, abs=5e-3)


def test_a_job_with_too_few_calls_is_refused() -> None:
    """A model that still speaks for its prior is not judged as if it were measured."""
    run = RankRun(moments=[(KINDS[0], Moments().sums.tolist())], steps=[])

    with pytest.raises(ValueError, match="packs: must be more"):
        judge_job([run])


def _figures(benchmark: Any, *arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    found: dict[str, Any] = benchmark.measure(parser.parse_args(arguments))
    assert found == json.loads(json.dumps(found))
    assert found["machine"] in benchmark.shown(found)
    return found


def test_real_tiles_are_measured() -> None:
    """Every head dim has finite errors of both models, and says in how many calls it learned."""
    small = ("--tiles", "10", "--longest", "512", "--passes", "2", "--orders", "2")
    threads = torch.get_num_threads()
    found = _figures(cost_model_tiles, *small, "--head-dims", "16", "32")

    assert torch.get_num_threads() == threads
    assert [own["head_dim"] for own in found["head_dims"]] == [16, 32]
    for own in found["head_dims"]:
        for model in ("libra", "flops"):
            for kernel in ("both", "forward", "backward"):
                for which in ("whole", "cut"):
                    figures = own[model][kernel][which]
                    assert all(0 <= figures[name] < np.inf for name in figures)
        assert own["observations"]["orders"] == 2
    assert "torch" in found["machine"]


@pytest.mark.dist
def test_ranks_of_a_job_are_measured() -> None:
    """Real ranks report moments and totals, and each of their later steps is judged."""
    small = ("--packs", "16", "--tokens", "1024", "--lengths", "wikipedia", "--timeout-s", "90")
    found = _figures(cost_model_job, *small)

    assert found["rank_steps"] == 2 * 8
    for model in ("libra", "flops"):
        assert 0 < found[model]["cost_weighted_error"] < np.inf
        assert found[model]["p90"] >= 0


def test_sizes_that_prove_nothing_are_refused() -> None:
    """The setting is named before anything is measured."""
    with pytest.raises(ValueError, match="tiles=3: must be at least 10"):
        _figures(cost_model_tiles, "--tiles", "3")
    with pytest.raises(ValueError, match="packs=2: must be at least 4"):
        _figures(cost_model_job, "--packs", "2")


@pytest.mark.dist
def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    """All sections stand in the file, what others wrote stays, and a try never goes to RESULTS."""
    path = tmp_path / "results.md"
    path.write_text("# Figures\n\nOwn words.\n")
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()

    done = run_benchmark("cost_model_table", "--quick", "--write", str(path), LIBRA_DATA="")

    assert not done.returncode, done.stderr
    assert path.read_text().startswith("# Figures\n\nOwn words.\n\n## Model\n")
    assert done.stdout.strip() in path.read_text()
    for title in ("Measured H100 packs", "Tiles on this machine", "Ranks of a job"):
        assert f"### {title}" in done.stdout
    assert done.stdout.count("Not measured") == 1  # nobody named a folder of recorded packs
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == results
