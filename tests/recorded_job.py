"""Writes traces of jobs that never ran: each rank's operations, timed by hand rules of a pipeline.

Written without the code under test, so that what it computes from rows can be held to this.
Shapes: S steps, D data-parallel ranks, P stages, V chunks a stage, M micro-batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]
Op = tuple[str, int, int]  # direction, micro-batch, chunk of the stage


@dataclass(kw_only=True)
class Job:
    """A job to record; seconds unless a name says otherwise.

    ``data`` multiplies a micro-batch's computing [S, D, M], ``speed`` a rank's [D, P] and
    ``stage`` a stage's [P]; ``idle_transfers`` records transfers that carry nothing as well.
    """

    dp: int = 2
    pp: int = 2
    vpp: int = 1
    micro_batches: int = 4
    steps: int = 8
    cp: int = 1
    forward_s: float = 0.1
    transfer_s: float = 0.001
    collective_s: float = 0.01
    idle_transfers: bool = False
    omit: frozenset[str] = frozenset()
    noise: float = 0.0
    seed: int = 0
    data: NDArray[np.float64] | None = None
    speed: dict[tuple[int, int], float] = field(default_factory=dict)
    stage: dict[int, float] = field(default_factory=dict)

    def rank(self, dp_rank: int, stage: int) -> int:
        """Number as one process of each context-parallel group would be."""
        return (stage * self.dp + dp_rank) * self.cp

    def rows(self) -> list[Row]:
        """Return all operations."""
        rng = np.random.default_rng(self.seed)
        return [row for step in range(self.steps) for row in _step(self, step, rng)]


def schedule(job: Job, stage: int) -> list[Op]:
    """Return what a stage computes, in order: 1F1B, interleaved where it has several chunks."""
    total = job.micro_batches * job.vpp
    ahead = (
        job.pp - stage - 1 if job.vpp == 1 else 2 * (job.pp - stage - 1) + (job.vpp - 1) * job.pp
    )
    ahead = min(ahead, total)
    forward = [("forward", *_virtual(job, k)) for k in range(total)]
    backward = [
        ("backward", micro, job.vpp - 1 - chunk)
        for micro, chunk in (_virtual(job, k) for k in range(total))
    ]
    order = forward[:ahead]
    for k in range(total - ahead):
        order += [forward[ahead + k], backward[k]]
    return order + backward[total - ahead :]


def _virtual(job: Job, k: int) -> tuple[int, int]:
    """Return micro-batch and chunk of a stage's k-th computing in one direction."""
    group, inside = divmod(k, job.pp * job.vpp)
    return (k, 0) if job.vpp == 1 else (group * job.pp + inside % job.pp, inside // job.pp)


def _step(job: Job, step: int, rng: np.random.Generator) -> Iterator[Row]:
    base = 100.0 * step
    gathered = base + job.collective_s if "params-all-gather" not in job.omit else base
    done: dict[tuple[int, int], float] = {}
    for dp_rank in range(job.dp):
        for stage in range(job.pp):
            yield from _row(job, step, dp_rank, stage, "params-all-gather", base, gathered, chunk=0)
        for row in _pipeline(job, step, dp_rank, gathered, rng):
            key = (dp_rank, row["stage"])
            if row["optype"].endswith("compute"):
                done[key] = max(done.get(key, 0.0), row["start_ts"] + row["duration"])
            if row["optype"] not in job.omit:
                yield row
    yield from _ending(job, step, done)


def _pipeline(
    job: Job, step: int, dp_rank: int, begin: float, rng: np.random.Generator
) -> Iterator[Row]:
    """Time one pipeline by sweeping over its stages until everything is placed."""
    orders = {stage: schedule(job, stage) for stage in range(job.pp)}
    chunks, at = job.pp * job.vpp, dict.fromkeys(orders, 0)
    free = dict.fromkeys(orders, begin)
    end: dict[tuple[str, int, int], float] = {}
    posted: dict[tuple[int, str], float] = {}
    while any(at[stage] < len(orders[stage]) for stage in orders):
        moved = False
        for stage, order in orders.items():
            while at[stage] < len(order):
                direction, micro, chunk = order[at[stage]]
                here = chunk * job.pp + stage
                before = here + (-1 if direction == "forward" else 1)
                start, fed = free[stage], 0 <= before < chunks
                if fed and (direction, micro, before) not in end:
                    break
                ready = posted.get((stage, direction), begin)
                if fed:
                    sent = end[direction, micro, before]
                    arrived = max(sent, ready) + _transfer_s(job)
                    start = max(start, arrived)
                    name = f"{direction}-recv"
                    yield from _row(job, step, dp_rank, stage, name, ready, arrived)
                    peer = before % job.pp
                    yield from _row(job, step, dp_rank, peer, f"{direction}-send", sent, arrived)
                elif job.idle_transfers:
                    yield from _row(job, step, dp_rank, stage, f"{direction}-recv", ready, ready)
                seconds = _compute_s(job, step, dp_rank, stage, micro, direction, rng)
                free[stage] = start + seconds
                end[direction, micro, here] = posted[stage, direction] = start + seconds
                yield from _row(
                    job,
                    step,
                    dp_rank,
                    stage,
                    f"{direction}-compute",
                    start,
                    start + seconds,
                    chunk=chunk,
                    micro=micro,
                    gmc=here,
                )
                last = chunks - 1 if direction == "forward" else 0
                if job.idle_transfers and here == last:
                    now = start + seconds
                    yield from _row(job, step, dp_rank, stage, f"{direction}-send", now, now)
                at[stage], moved = at[stage] + 1, True
        assert moved, "the schedule waits for itself"


def _ending(job: Job, step: int, done: dict[tuple[int, int], float]) -> Iterator[Row]:
    """After computing: gradients are reduced within a stage, and clipped by all ranks."""
    reduced = {}
    for stage in range(job.pp):
        meet = max(done[dp_rank, stage] for dp_rank in range(job.dp))
        reduced[stage] = meet + job.collective_s
    clipped = max(reduced.values()) + 0.001
    for (dp_rank, stage), began in done.items():
        if "grads-reduce-scatter" in job.omit:
            return
        ends = [
            ("gc", began, began),
            ("grads-reduce-scatter", began, reduced[stage]),
            ("optimizer-clip-main-grad", reduced[stage], clipped),
            ("optimizer", clipped, clipped + 0.002),
        ]
        for name, start, end in ends:
            yield from _row(job, step, dp_rank, stage, name, start, end, chunk=0)


def _transfer_s(job: Job) -> float:
    both = {"forward-send", "forward-recv", "backward-send", "backward-recv"}
    return 0.0 if both <= job.omit else job.transfer_s


def _compute_s(
    job: Job,
    step: int,
    dp_rank: int,
    stage: int,
    micro: int,
    direction: str,
    rng: np.random.Generator,
) -> float:
    seconds = job.forward_s / job.vpp * (2.0 if direction == "backward" else 1.0)
    if job.data is not None:
        seconds *= job.data[step, dp_rank, micro]
    seconds *= job.speed.get((dp_rank, stage), 1.0) * job.stage.get(stage, 1.0)
    return float(seconds * np.exp(job.noise * rng.standard_normal()))


def _row(
    job: Job,
    step: int,
    dp_rank: int,
    stage: int,
    optype: str,
    start: float,
    end: float,
    *,
    chunk: int = -1,
    micro: int = -1,
    gmc: int = -1,
) -> Iterator[Row]:
    if optype not in job.omit:
        yield {
            "dp_rank": dp_rank, "stage": stage, "rank": job.rank(dp_rank, stage), "step": step,
            "optype": optype, "start_ts": start, "duration": end - start, "seq_id": 0,
            "mc": chunk, "mb_id": micro, "gmc": gmc,
        }  # fmt: skip


def numbered(rows: list[Row]) -> list[Row]:
    """Return rows whose ``seq_id`` counts a rank's operations of one kind in a step."""
    counts: dict[tuple[int, int, str], int] = {}
    result = []
    for row in sorted(rows, key=lambda row: row["start_ts"]):
        key = (row["step"], row["rank"], row["optype"])
        counts[key] = counts.get(key, -1) + 1
        result.append({**row, "seq_id": counts[key]})
    return result


def write_parquet(path: Path, rows: list[Row], *, drop: str = "") -> Path:
    """Write rows as Parquet, in the order of time, less one column."""
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    columns = {name: [row[name] for row in numbered(rows)] for name in rows[0] if name != drop}
    parquet.write_table(arrow.table(columns), path)
    return path


def meta_of(job: Job) -> str:
    """Return the meta file's text."""
    return (
        f"trial_name: T\nrun_id: 0\ndp_size: {job.dp}\ndsp_size: {job.cp}\npp_size: {job.pp}\n"
        f"tp_size: 1\nvpp_size: {job.vpp}\nworld_size: {job.dp * job.pp * job.cp}\n"
    )


def uneven(job: Job, sigma: float = 0.5, seed: int = 1) -> NDArray[np.float64]:
    """Return factors of log-normal micro-batches [S, D, M] of mean 1."""
    shape = (job.steps, job.dp, job.micro_batches)
    return np.random.default_rng(seed).lognormal(-(sigma**2) / 2, sigma, shape)
