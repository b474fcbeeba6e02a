"""The cost model's benchmark judges rightly, and refuses what it cannot judge."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cost_model_packed import judge, shown
from benchmarks.model_errors import errors, held_out, nonnegative
from benchmarks.packed_times import COLUMNS, PackedTimes, Shape, read_packed, tile_rows
from libra.attention.cost import tile_features
from tests.benchmark_runs import run_benchmark

PACK = 8192
LENGTHS = tuple(sorted(own << doubling for own in (32, 40, 48) for doubling in range(8)))
# Seconds per tile, query token, key token, causal pair, block of rows and row of a long tile.
TRUTH = np.array([2e-7, 3e-9, 1e-9, 4e-12, 1e-7, 1e-9])

Fields = dict[str, str]


def _row(length: int, *, tp: int = 2, cp: int = 1, noise: float = 1.0) -> Fields:
    """Return a row of the CSV whose milliseconds are those of ``TRUTH``."""
    rows, keys = tile_rows(np.array([length]), cp)
    tile = (tile_features(keys - rows, keys)[0] * TRUTH).sum() / tp
    documents = PACK // length
    values = ("H100", 64, 4, 128, tp, cp, PACK, documents, length, 1e3 * documents * tile * noise)
    return dict(zip(COLUMNS, map(str, values), strict=True))


def _rows(**options: Any) -> list[Fields]:
    return [_row(length, **options) for length in LENGTHS]


def _write(path: Path, rows: list[Fields]) -> Path:
    names = list(rows[0]) if rows else list(COLUMNS)
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _figures(path: Path) -> dict[str, Any]:
    return judge(read_packed(path))


def test_times_that_the_features_explain_are_predicted(tmp_path: Path) -> None:
    """From true costs of the six features nothing is missed, in no shape; lengths alone miss."""
    rows = [row for tp, cp in ((1, 1), (8, 1), (2, 4)) for row in _rows(tp=tp, cp=cp)]

    found = _figures(_write(tmp_path / "own.csv", rows))

    assert found["cost_weighted_error"] < 2e-3
    assert found["mape"] < 2e-2
    assert [(own["tp"], own["cp"]) for own in found["shapes"]] == [(1, 1), (2, 4), (8, 1)]
    assert found["baselines"]["squared_length"]["mape"] > 0.2
    assert found["skipped"] == []


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    """With --json all figures under their names, without it tables of the same."""
    path = _write(tmp_path / "own.csv", _rows())

    done, plain = (
        run_benchmark("cost_model", "--packed", str(path), *own) for own in (["--json"], [])
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(json.dumps(_figures(path)))
    assert plain.stdout == f"{shown(_figures(path))}\n"


def test_overall_figures_are_means_of_shapes_and_of_all_rows(tmp_path: Path) -> None:
    """One is the mean over shapes, the other takes all rows as one: the dearer shape rules it."""
    noisy = [_row(length, tp=8, noise=1 + index % 3 / 5) for index, length in enumerate(LENGTHS)]
    found = _figures(_write(tmp_path / "own.csv", _rows(tp=1) + noisy))

    for name in ("cost_weighted_error", "mape"):
        assert found[name] == pytest.approx(np.mean([own[name] for own in found["shapes"]]))
    weight = sum(float(row["ms_per_pack"]) for row in noisy)
    total = weight + sum(float(row["ms_per_pack"]) for row in _rows(tp=1))
    clean, noisy_shape = found["shapes"]
    pooled = (
        clean["cost_weighted_error"] * (total - weight)
        + noisy_shape["cost_weighted_error"] * weight
    ) / total
    assert found["pooled"]["cost_weighted_error"] == pytest.approx(pooled)


def test_order_doubles_and_other_columns_change_nothing(tmp_path: Path) -> None:
    """Rows in any order, columns in any order and unknown ones give the same figures."""
    rows = [_row(length, noise=1 + 0.1 * (index % 2)) for index, length in enumerate(LENGTHS)]
    other = [{"note": "own", **dict(reversed(list(row.items())))} for row in rows]
    random.Random(3).shuffle(other)

    first = _figures(_write(tmp_path / "own.csv", rows))
    again = _figures(_write(tmp_path / "other.csv", other))

    assert first == again


def test_doubled_lengths_stay_on_one_side() -> None:
    """A length that was measured twice is never in the fit that predicts it."""
    lengths = np.repeat(LENGTHS, 2)
    times = PackedTimes(
        shape=_shape(), document_tokens=lengths, documents=PACK // lengths, seconds=lengths * 1e-6
    )

    folds = times.every_other

    assert folds.tolist() == [index // 2 % 2 for index in range(len(lengths))]


def test_each_prediction_is_held_out() -> None:
    """A predictor never sees the rows that it is asked for, and each is asked for once."""
    features, folds = np.arange(6.0)[:, None], np.array([0, 1, 2, 0, 1, 2])
    asked: list[float] = []

    def predictor(own: Any, seconds: Any, wanted: Any) -> Any:
        assert not set(own.ravel()) & set(wanted.ravel())
        assert seconds.tolist() == (2 * own.ravel()).tolist()
        asked.extend(wanted.ravel())
        return 3 * wanted.ravel()

    predicted = held_out(features, 2 * features.ravel(), folds, predictor)

    assert predicted.tolist() == [0, 3, 6, 9, 12, 15]
    assert sorted(asked) == features.ravel().tolist()


def test_errors_are_weighted_by_cost_and_plain() -> None:
    """One sums misses over seconds, the other averages relative misses."""
    found = errors(np.array([1.0, 3.0]), np.array([1.5, 3.0]))

    assert found == {"cost_weighted_error": pytest.approx(0.125), "mape": pytest.approx(0.25)}


def test_a_plain_fit_is_never_negative() -> None:
    """Costs that fall with a column give it none; others are found, in seconds of any size."""
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])

    assert nonnegative(columns, 1e-7 * np.array([3.0, 2.0, 1.0]), power=0.0)[1] == 0
    found = nonnegative(columns, 1e2 * columns @ [1.0, 2.0], power=1.0)
    assert found == pytest.approx([1e2, 2e2], rel=1e-6)


@pytest.mark.parametrize("cp", [1, 2, 4, 8])
def test_a_rank_of_a_group_reads_what_head_and_tail_read(cp: int) -> None:
    """Its tile has L / cp rows and as many causal pairs as an even share of the document."""
    length = 4096
    rows, keys = tile_rows(np.array([length]), cp)
    pairs = tile_features(keys - rows, keys)[0][3]

    assert rows[0] == length // cp
    assert pairs * cp == pytest.approx(length * (length + 1) / 2, rel=1e-3)


def test_a_shape_of_few_lengths_is_skipped_and_named(tmp_path: Path) -> None:
    """Three lengths cannot be two to fit and two to predict; the other shape is judged alone."""
    alone = _figures(_write(tmp_path / "alone.csv", _rows()))
    found = _figures(_write(tmp_path / "own.csv", _rows() + _rows(tp=4)[:3] * 2))

    assert found["skipped"] == [{**_shape_fields(tp=4), "lengths": 3, "needed": 4}]
    assert found["shapes"] == alone["shapes"]
    assert "Skipped, 3 of 4 lengths: H100 64/4 heads of 128, tp 4" in shown(found)


def _without(name: str) -> list[Fields]:
    return [{key: value for key, value in row.items() if key != name} for row in _rows()]


def _with(**fields: str) -> list[Fields]:
    return [*_rows(), {**_row(32), **fields}]


BAD = {
    "no column": (_without("ms_per_pack"), "has no column ms_per_pack"),
    "no cp": (_without("cp"), "has no column cp"),
    "no rows": ([], "has no rows"),
    "infinite": (_with(ms_per_pack="inf"), "line 26: ms_per_pack='inf': must be finite"),
    "not a number": (_with(ms_per_pack="nan"), "line 26: ms_per_pack='nan': must be finite"),
    "negative": (_with(ms_per_pack="-1"), "must be above 0"),
    "words": (_with(documents="many"), "line 26: documents='many': must be a number"),
    "half a token": (_with(document_tokens="32.5"), "must be an integer in 1.."),
    "no tokens left": (_with(document_tokens="4", cp="8"), "document_tokens=4: must be at least"),
    "few lengths": (_rows()[:3], "no shape has 4 different document_tokens"),
}


@pytest.mark.parametrize(("rows", "message"), BAD.values(), ids=BAD)
def test_a_bad_table_is_one_line_and_exit_2(
    tmp_path: Path, rows: list[Fields], message: str
) -> None:
    """Whatever is wrong is said in one line that names the place, and there are no figures."""
    path = _write(tmp_path / "bad.csv", rows)

    with pytest.raises(ValueError, match="packed") as error:
        _figures(path)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_the_command_refuses_what_is_no_table(tmp_path: Path, content: bytes | None) -> None:
    """A file that is missing or binary: one line on stderr, nothing else, exit 2."""
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_bytes(content)

    done = run_benchmark("cost_model", "--packed", str(path), "--json")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cost_model.py: error: packed=" in done.stderr
    assert "Traceback" not in done.stderr


def _shape_fields(*, tp: int = 2) -> dict[str, Any]:
    numbers = {"q_heads": 64, "kv_heads": 4, "head_dim": 128, "tp": tp, "cp": 1}
    return {"gpu_type": "H100", **numbers, "pack_tokens": PACK}


def _shape() -> Shape:
    return Shape(**_shape_fields())
