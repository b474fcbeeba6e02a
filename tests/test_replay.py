"""``libra replay`` names what a recorded job loses its time to, or what is wrong with a file."""

import dataclasses
import gzip
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from libra.balancer.__main__ import main
from libra.balancer.causes import CAUSES
from libra.balancer.recorded_cause import RecordedSettings
from tests.recorded_job import Job, Row, meta_of, numbered, uneven, write_parquet

TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")


def _data(job: Job, sigma: float = 0.5) -> Job:
    return dataclasses.replace(job, data=uneven(job, sigma))


WIDE = Job(dp=8, pp=2, micro_batches=4, steps=20, noise=0.02, cp=2)
FLAT = Job(dp=8, pp=1, micro_batches=4, steps=30, noise=0.02)
CHUNKED = Job(dp=4, pp=2, vpp=2, micro_batches=4, steps=12, noise=0.02)
CAUSED: dict[str, tuple[Job, str, list[int]]] = {
    "even": (WIDE, "even", []),
    "even, no pipeline": (FLAT, "even", []),
    "even, one rank": (Job(dp=1, pp=1, steps=8, noise=0.02), "even", []),
    "even, some exchange": (dataclasses.replace(WIDE, collective_s=0.06), "even", []),
    "uneven data": (_data(WIDE), "uneven data", []),
    "uneven data, heavy tail": (_data(WIDE, 1.0), "uneven data", []),
    "uneven data, no pipeline": (_data(FLAT), "uneven data", []),
    "uneven data, interleaved": (_data(CHUNKED), "uneven data", []),
    "slow rank": (dataclasses.replace(WIDE, speed={(3, 1): 1.5}), "slow rank", [22]),
    "slow rank, uneven data": (
        dataclasses.replace(_data(WIDE), speed={(3, 1): 1.5}),
        "slow rank",
        [22],
    ),
    "slow rank, uneven data, no pipeline": (
        dataclasses.replace(_data(FLAT), speed={(5, 0): 1.5}),
        "slow rank",
        [5],
    ),
    "slow rank, interleaved": (
        dataclasses.replace(_data(CHUNKED), speed={(0, 1): 1.6}),
        "slow rank",
        [4],
    ),
    "two slow ranks": (
        dataclasses.replace(WIDE, speed={(1, 0): 1.3, (6, 1): 1.8}),
        "slow rank",
        [28, 2],
    ),
    "slow rank of two": (
        Job(dp=2, pp=2, steps=12, noise=0.02, speed={(1, 0): 1.5}),
        "slow rank",
        [1],
    ),
    "slow last stage": (dataclasses.replace(WIDE, stage={1: 1.4}), "uneven stages", []),
    "slow last stage of four": (
        Job(dp=2, pp=4, micro_batches=8, steps=10, noise=0.02, stage={3: 1.5}),
        "uneven stages",
        [],
    ),
    "slow network": (dataclasses.replace(WIDE, transfer_s=0.1), "exchange bound", []),
    "slow collectives": (dataclasses.replace(WIDE, collective_s=0.5), "exchange bound", []),
    "too few steps": (dataclasses.replace(_data(WIDE), steps=3), "too little evidence", []),
    "jitter": (dataclasses.replace(WIDE, noise=0.5), "too little evidence", []),
}


def _replay(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    answer: dict[str, Any] = json.loads(captured.out)
    return answer


def _files(folder: Path, job: Job) -> tuple[Path, Path]:
    meta = folder / "meta.yaml"
    meta.write_text(meta_of(job))
    return write_parquet(folder / "trace.parquet", job.rows()), meta


@pytest.mark.parametrize("name", CAUSED)
def test_the_cause_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each cause is told from the others, and slow ranks by their own numbers, slowest first."""
    job, cause, ranks = CAUSED[name]
    trace, meta = _files(tmp_path, job)

    answer = _replay(capsys, trace, "--meta", meta)

    assert (answer["cause"], answer["ranks"]) == (cause, ranks), answer["sentence"]
    assert answer["cause"] in CAUSES
    assert list(answer["slowdown_per_step"]) == [str(step) for step in range(job.steps)]
    assert answer["steps"] == job.steps
    assert answer["mesh"]["world_size"] == job.dp * job.pp * job.cp
    assert answer["simulation_error"] < 1e-6


def test_losses_are_what_putting_it_right_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cause's seconds are the difference to a job that differs in that cause alone."""
    uneven_job = dataclasses.replace(_data(WIDE), noise=0.0)
    slow_job = dataclasses.replace(uneven_job, speed={(3, 1): 1.5})
    slow = _replay(capsys, *_files(tmp_path, slow_job)[:1])
    plain = _replay(capsys, *_files(tmp_path, uneven_job)[:1])

    saved = slow["step_seconds"] - plain["step_seconds"]

    assert slow["lost_seconds"]["slow rank"] == pytest.approx(saved, rel=0.15)
    assert 0 < slow["recoverable_share"] < plain["recoverable_share"] < 1


@pytest.mark.skipif("LIBRA_DATA" not in os.environ, reason="LIBRA_DATA names no recorded traces")
def test_a_real_job(capsys: pytest.CaptureFixture[str]) -> None:
    """A job of 128 GPUs gives the slowdowns that were published of it, and its known cause."""
    folder = Path(os.environ["LIBRA_DATA"])
    published = json.loads((folder / "trace-SE-result.json").read_text())

    answer = _replay(capsys, folder / "trace-SE.parquet", "--meta", folder / "trace-SE-meta.yaml")

    assert answer["slowdown"] == pytest.approx(published["blocking_slowdown"], rel=1e-3)
    for step, slowdown in published["blocking_step_slowdown"].items():
        assert answer["slowdown_per_step"][step] == pytest.approx(slowdown, rel=1e-3)
    for stage, slowdown in published["blocking_decompose_by_stage"].items():
        assert answer["stages"][stage]["kept"] == pytest.approx(slowdown, rel=1e-3)
    for kind, slowdown in published["blocking_decompose_by_optype"].items():
        assert answer["optypes"][kind]["kept"] == pytest.approx(slowdown, rel=1e-3)
    assert (answer["cause"], answer["ranks"], answer["dropped_steps"]) == ("uneven data", [], {})


def test_formats_give_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parquet, CSV and gzipped CSV of a job are one trace, and the mesh is in its rows."""
    trace, meta = _files(tmp_path, CHUNKED)
    rows = numbered(CHUNKED.rows())
    text = "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])
    (tmp_path / "trace.csv").write_text(text)
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(text.encode()))

    whole = _replay(capsys, trace, "--meta", meta)
    others = [_replay(capsys, tmp_path / name) for name in ("trace.csv", "trace.csv.gz")]

    for other in (*others, _replay(capsys, trace)):
        assert other["slowdown_per_step"] == pytest.approx(whole["slowdown_per_step"])
        assert other["mesh"] == whole["mesh"]


def test_steps_that_are_not_whole_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that lacks a rank, or some of a rank's micro-batches, is counted and said."""
    half = (7, 0, 3, "backward-compute")
    rows = [
        row
        for row in WIDE.rows()
        if not (row["step"] == 2 and row["rank"] == 4)
        and not (row["step"] == 5 and row["rank"] == 0 and row["start_ts"] > 500.5)
        and (row["step"], row["dp_rank"], row["mb_id"], row["optype"]) != half
    ]
    trace = write_parquet(tmp_path / "trace.parquet", rows)

    answer = _replay(capsys, trace)
    assert main(["replay", str(trace)]) == 0
    text = capsys.readouterr().out

    assert list(answer["dropped_steps"]) == ["2", "5", "7"]
    assert "lacks 1 of 16 ranks (4)" in answer["dropped_steps"]["2"]
    assert (answer["cause"], answer["steps"]) == ("even", WIDE.steps - 3)
    assert "3 steps left out" in text


def test_other_operations_are_taken_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kinds that no one has heard of neither stop a replay nor change what they do not delay."""
    rows = WIDE.rows()
    more: list[Row] = []
    for row in rows:
        if row["optype"] == "backward-compute":
            more.append(
                {**row, "optype": "copy", "start_ts": row["start_ts"] + 0.01, "duration": 0.1}
            )
        if row["optype"] == "optimizer":
            end = row["start_ts"] + row["duration"]
            more.append({**row, "optype": "logging", "start_ts": end, "duration": 0.05})

    answer = _replay(capsys, write_parquet(tmp_path / "trace.parquet", rows + more))

    assert answer["cause"] == "even"
    assert answer["simulation_error"] < 1e-3
    assert {"copy", "logging"} < set(answer["optypes"])


def _without(name: str) -> Callable[[Path], Path]:
    return lambda folder: write_parquet(folder / "trace.parquet", Job().rows(), drop=name)


def _with(name: str, value: object, at: int = 7) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        rows = numbered(Job().rows())
        rows[at][name] = value
        return write_parquet(folder / "trace.parquet", rows)

    return write


def _bytes(name: str, content: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        whole = write_parquet(folder / "whole.parquet", Job().rows()).read_bytes()
        (folder / name).write_bytes(content(whole))
        return folder / name

    return write


def _only(keep: Callable[[Row], bool]) -> Callable[[Path], Path]:
    return lambda folder: write_parquet(
        folder / "trace.parquet", [row for row in Job().rows() if keep(row)]
    )


def _relabelled(folder: Path) -> Path:
    rows = [{**row, "optype": row["optype"].replace("compute", "work")} for row in Job().rows()]
    return write_parquet(folder / "trace.parquet", rows)


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "none.parquet", "No such file"),
    "a folder": (lambda folder: folder, "Is a directory"),
    "not Parquet": (_bytes("t.parquet", lambda _: b"hello, world"), "neither whole Parquet"),
    "empty": (_bytes("t.parquet", lambda _: b""), "neither whole Parquet"),
    "truncated": (_bytes("t.parquet", lambda whole: whole[: len(whole) // 2]), "record or copy"),
    "truncated gzip": (
        _bytes("t.csv.gz", lambda whole: gzip.compress(whole)[: len(whole) // 3]),
        "t.csv.gz",
    ),
    "no duration": (_without("duration"), "has no column 'duration'"),
    "no rank": (_without("rank"), "has no column 'rank'"),
    "no seq_id": (_without("seq_id"), "has no column 'seq_id'"),
    "negative": (_with("duration", -0.5), "row 7: duration=-0.5: must be finite and not negative"),
    "not a number": (_with("duration", float("nan")), "duration=nan: must be finite"),
    "infinite": (_with("start_ts", float("inf")), "start_ts=inf: must be finite"),
    "absent": (_with("duration", None), "row 7: duration=nan"),
    "no such rank": (_with("rank", -3), "rank=-3: must not be negative"),
    "absent rank": (_with("rank", None), "column 'rank' lacks 1 values"),
    "absent kind": (_with("optype", None), "column 'optype' lacks 1 values"),
    "a rank at two stages": (_with("stage", 1, at=0), "more than one stage"),
    "no rows": (_bytes("t.csv", lambda _: _header()), "has no rows"),
    "nothing computes": (_relabelled, "rename those that compute"),
    "a rank nowhere": (_only(lambda row: row["rank"] != 3), "no rank is at dp_rank 1, stage 1"),
    "no whole step": (
        _only(lambda row: row["rank"] != row["step"] % 4),
        "no step is whole: step 0 lacks 1 of 4 ranks (0)",
    ),
}


def _header() -> bytes:
    return (",".join(numbered(Job().rows())[0]) + "\n").encode()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """What cannot be judged ends with status 2 and one line that says what to mend."""
    write, message = BAD[name]

    status = main(["replay", str(write(tmp_path)), "--json"])

    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("libra replay: ")
    assert message in captured.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp_size: 4\n", "dp_size=4 in the meta file, but the rows hold 2"),
        ("pp_size: 1\n", "pp_size=1 in the meta file, but the rows hold 2"),
        ("vpp_size: 2\n", "vpp_size=2 in the meta file, but the rows hold 1"),
        ("world_size: 8\n", "world_size=8 in the meta file"),
        ("dp_size: 0\n", "dp_size=0: must be a positive integer"),
        ("dp_size: many\n", "dp_size='many': must be a positive integer"),
        ("- a\n- b\n", "must hold lines such as"),
        ("a: [\n", "is not YAML"),
        (None, "No such file"),
    ],
)
def test_a_bad_meta_file_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    """A mesh that the rows contradict, or that is none, ends with status 2 and one line."""
    trace, meta = _files(tmp_path, Job())
    meta.unlink()
    if text is not None:
        meta.write_text(text)

    status = main(["replay", str(trace), "--meta", str(meta)])

    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert message in captured.err


def test_tables_are_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the sentence comes first, and tables tell what each part costs."""
    trace, meta = _files(tmp_path, CAUSED["slow rank"][0])

    assert main(["replay", str(trace), "--meta", str(meta)]) == 0

    text = capsys.readouterr().out
    assert text.startswith("Slow rank: rank 22 takes 1.5")
    for part in ("32 ranks (DP 8, PP 2, CP 2", "lost: slow rank", "backward-compute", "recorded"):
        assert part in text


@pytest.mark.parametrize(
    ("name", "value"), [("min_steps", 0), ("even_slowdown", 0.9), ("min_rank_share", 1.5)]
)
def test_settings_are_checked(name: str, value: float) -> None:
    """A limit that cannot be is refused by its name and value."""
    with pytest.raises(ValueError, match=f"{name}={value}"):
        RecordedSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pyarrow", "yaml"])
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A base install says which extra brings what reading traces needs."""
    import_module(name)
    monkeypatch.setitem(sys.modules, name, None)
    for module in ("libra.balancer.replay", "libra.balancer.trace_files"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    assert main(["replay", "trace.parquet"]) == 1
    assert "pip install 'libra-balancer[data]'" in capsys.readouterr().err


def test_many_ranks_are_all_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of very many ranks the busiest are computed one by one, and a slow one is among them."""
    job = Job(dp=150, pp=1, micro_batches=1, steps=6, noise=0.02, speed={(140, 0): 1.5})

    answer = _replay(capsys, *_files(tmp_path, job)[:1])

    known = [rank for rank, own in answer["rank_slowdowns"].items() if own["kept"] is not None]
    assert (answer["cause"], answer["ranks"]) == ("slow rank", [140])
    assert (len(answer["rank_slowdowns"]), len(known)) == (150, 128)
    assert answer["rank_slowdowns"]["140"]["kept"] > 1.3
