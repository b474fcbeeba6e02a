"""A recorded step is computed from its operations alone, and comes out as it was recorded."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.balancer.trace import Trace
from libra.balancer.trace_files import read_trace
from libra.balancer.whatif import Replay, what_if
from libra.balancer.whole_steps import whole_steps
from tests.recorded_job import Job, uneven, write_parquet

TRANSFERS = frozenset({"forward-send", "forward-recv", "backward-send", "backward-recv"})
MESHES = {
    "no pipeline": Job(pp=1),
    "one rank": Job(pp=1, dp=1),
    "a pipeline": Job(dp=3, pp=4, micro_batches=6),
    "context parallel": Job(cp=2),
    "few micro-batches": Job(pp=4, micro_batches=2),
    "interleaved": Job(pp=2, vpp=2),
    "interleaved thrice": Job(pp=4, vpp=3, micro_batches=8, steps=3),
    "idle transfers": Job(pp=2, vpp=2, idle_transfers=True),
    "idle transfers, one chunk": Job(pp=3, idle_transfers=True),
    "no receives": Job(pp=3, omit=frozenset({"forward-recv", "backward-recv"})),
    "no sends": Job(pp=3, omit=frozenset({"forward-send", "backward-send"})),
    "no transfers": Job(pp=3, omit=TRANSFERS),
    "no collectives": Job(omit=frozenset({"params-all-gather", "grads-reduce-scatter"})),
}


def _trace(path: Path, job: Job) -> Trace:
    return whole_steps(read_trace(write_parquet(path / "trace.parquet", job.rows())))[0]


@pytest.mark.parametrize("name", MESHES)
def test_steps_come_out_as_recorded(tmp_path: Path, name: str) -> None:
    """Whatever the mesh, and whatever transfers were recorded, order and waits are found."""
    job = dataclasses.replace(MESHES[name], noise=0.2)
    job.data = uneven(job)
    replay = Replay(_trace(tmp_path, job))

    computed = replay.seconds(replay.graph.work_s)

    assert not replay.circular
    np.testing.assert_allclose(computed, replay.trace.recorded_seconds(), rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["a pipeline", "interleaved", "no transfers", "no sends", "no receives"]
)
def test_other_durations_give_the_step_they_would_have_taken(tmp_path: Path, name: str) -> None:
    """Computing that is even again gives the steps of a job that was even: nothing else is kept."""
    job = MESHES[name]
    even = Replay(_trace(tmp_path, job))
    slow = Replay(_trace(tmp_path, dataclasses.replace(job, data=uneven(job), speed={(0, 0): 2.0})))

    kinds = slow.trace.is_any("forward-compute", "backward-compute")
    own = np.where(slow.trace.is_any("backward-compute"), 0.2, 0.1) / job.vpp
    computed = slow.seconds(np.where(kinds, own, slow.graph.work_s))

    np.testing.assert_allclose(computed, even.trace.recorded_seconds(), rtol=1e-6)


@pytest.mark.parametrize("recorded", ["by chunk", "by turn", "not at all"])
def test_micro_batches_are_followed_without_their_numbers(tmp_path: Path, recorded: str) -> None:
    """Numbers that run on over chunks, or were not recorded, do not break a pipeline's links."""
    job = Job(pp=2, vpp=2, noise=0.3)
    rows = job.rows()
    for row in rows:
        if row["mb_id"] >= 0 and recorded != "by chunk":
            row["mb_id"] = row["mb_id"] + 4 * row["mc"] if recorded == "by turn" else -1
    path = write_parquet(tmp_path / "trace.parquet", rows)
    replay = Replay(read_trace(path))

    computed = replay.seconds(replay.graph.work_s)

    np.testing.assert_allclose(computed, replay.trace.recorded_seconds(), rtol=1e-6)


def test_a_first_receive_may_be_missing(tmp_path: Path) -> None:
    """A recorder that notes a transfer for every computing but the first is understood."""
    job = Job(pp=2, vpp=2, idle_transfers=True, noise=0.3)
    first = [
        min(
            (row for row in job.rows() if row["optype"] == "forward-recv" and row["stage"] == 0),
            key=lambda row: (row["step"] != step, row["dp_rank"] != dp_rank, row["start_ts"]),
        )
        for step in range(job.steps)
        for dp_rank in range(job.dp)
    ]
    rows = [row for row in job.rows() if row not in first]
    replay = Replay(read_trace(write_parquet(tmp_path / "trace.parquet", rows)))

    computed = replay.seconds(replay.graph.work_s)

    assert replay.graph.used.mean() < 1.0
    np.testing.assert_allclose(computed, replay.trace.recorded_seconds(), rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    dp=st.integers(1, 4),
    micro_batches=st.integers(1, 5),
    steps=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_the_ideal_is_no_slower(
    tmp_path_factory: pytest.TempPathFactory, dp: int, micro_batches: int, steps: int, seed: int
) -> None:
    """Without a pipeline, where the order of micro-batches is free, even work is never slower."""
    job = Job(dp=dp, pp=1, micro_batches=micro_batches, steps=steps, noise=0.1, seed=seed)
    job.data = uneven(job, 0.8, seed)

    what = what_if(Replay(_trace(tmp_path_factory.mktemp("ideal"), job)))

    assert what.ideal_s.mean() <= what.actual_s.mean() * (1 + 1e-9)


@settings(deadline=None, max_examples=15)
@given(scale=st.floats(0.01, 100.0), vpp=st.integers(1, 2), seed=st.integers(0, 1000))
def test_seconds_scale(
    tmp_path_factory: pytest.TempPathFactory, scale: float, vpp: int, seed: int
) -> None:
    """A job that does everything so many times slower has steps so many times longer."""
    job = Job(vpp=vpp, steps=2, noise=0.3, seed=seed)
    replay = Replay(_trace(tmp_path_factory.mktemp("scale"), job))
    work = replay.graph.work_s

    np.testing.assert_allclose(replay.seconds(scale * work), scale * replay.seconds(work))


def test_circles_are_left_out(tmp_path: Path) -> None:
    """A step whose ranks' clocks contradict each other is left out, and the others are kept."""
    rows = Job(steps=3).rows()
    kinds = ("grads-reduce-scatter", "optimizer-clip-main-grad")
    first, second = (r for r in rows if r["step"] == 1 and r["rank"] == 0 and r["optype"] in kinds)
    first["start_ts"], second["start_ts"] = second["start_ts"], first["start_ts"]
    replay = Replay(read_trace(write_parquet(tmp_path / "trace.parquet", rows)))

    assert replay.circular == (1,)
    assert replay.trace.steps.tolist() == [0, 2]
