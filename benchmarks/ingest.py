"""What the balancer pays for reports: a node's batch, a single report, and a complete step.

CPU time of one process, so that what else a machine does counts little. Shapes: R ranks a batch.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from libra.attention.cost import tile_features
from libra.attention.observer import KernelKind
from libra.balancer.batch import Batch, batch_of, batch_of_one, decode_batch, encode_batch
from libra.balancer.batch_check import refused_rows
from libra.balancer.job import Job
from libra.balancer.moments import Moments
from libra.balancer.wire import (
    Coordinates,
    KernelMoments,
    KernelTotals,
    Report,
    StepTotals,
    WaveMoments,
    decode_report,
    encode_report,
)

NODE_RANKS = 8
_NOW_S = 1_700_000_000.0
_CALLS = 16
_FORWARD = KernelKind(
    device="cuda", backend="flash", dtype="bf16", head_dim=128, group_heads=4, direction="forward"
)
_KINDS = {_FORWARD: 1.0, replace(_FORWARD, direction="backward"): 2.5}
_COSTS = np.array([2e-5, 1e-8, 4e-9, 1e-9, 1e-7, 1e-9])


def made_report(rank: int, step: int, world_size: int) -> Report:
    """Return one rank's report of one step: two kinds, some points, waves, micro-batches."""
    rng = np.random.default_rng((rank, step))
    calls = tile_features(0, rng.lognormal(8, 0.5, _CALLS).astype(np.int64)).astype(float)
    moments, kernels = [], []
    for kind, factor in _KINDS.items():
        seconds = calls @ _COSTS * factor * np.exp(0.02 * rng.standard_normal(_CALLS))
        sums = Moments()
        sums.add(calls, seconds)
        rows = np.column_stack((calls, seconds))[:4].tolist()
        points = [tuple(row) for row in rows]
        moments.append(KernelMoments(kind=kind, sums=sums.sums.tolist(), points=points))
        total = tuple(calls.sum(axis=0).tolist())
        kernels.append(KernelTotals(kind=kind, features=total, seconds=float(seconds.sum())))
    waves = Moments(num_features=2)
    waves.add([[3, 1e6], [4, 2e6]], [1e-3, 2e-3])
    totals = StepTotals(
        step=step,
        policy_version=0,
        seconds=1.0,
        kernels=kernels,
        home_features=kernels[0].features,
        home_pairs=[float(pairs) for pairs in calls[:4, 3]],
        sent_bytes=1000,
        wait_seconds=0.001,
    )
    return Report(
        schema=1,
        job="job",
        run="run",
        node=f"node-{rank // NODE_RANKS}",
        agent=f"agent-{rank}",
        sequence=step,
        rank=rank,
        world_size=world_size,
        coordinates=Coordinates(dp=rank // 2, cp=rank % 2, pool=rank // 16),
        moments=moments,
        steps=[totals],
        waves=[WaveMoments(transport="nccl", sums=waves.sums.tolist())],
        sent_s=_NOW_S,
    )


def node_batches(world_size: int, step: int) -> list[Batch]:
    """Return every node's batch of one step."""
    return [
        batch_of([made_report(rank, step, world_size) for rank in range(first, first + NODE_RANKS)])
        for first in range(0, world_size, NODE_RANKS)
    ]


def cpu_us(what: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of a call, in microseconds, of five rounds."""
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(repeats):
            what()
        rounds.append((time.process_time() - start) / repeats * 1e6)
    return min(rounds)


def fold_us(job: Job, bodies: Sequence[bytes]) -> float:
    """Return CPU microseconds of taking a body in, decoding included."""
    start = time.process_time()
    for body in bodies:
        job.take(decode_batch(body), _NOW_S)
    return (time.process_time() - start) / len(bodies) * 1e6


def batch_rows(repeats: int) -> list[tuple[str, float]]:
    """Return what each part of taking in a node's batch costs."""
    reports = [made_report(rank, 0, 10_000) for rank in range(NODE_RANKS)]
    batch = batch_of(reports)
    body, single = encode_batch(batch), encode_report(reports[0])
    rows = [
        ("batch: pack (relay)", cpu_us(lambda: batch_of(reports), repeats)),
        ("batch: encode (relay)", cpu_us(lambda: encode_batch(batch), repeats)),
        ("batch: decode", cpu_us(lambda: decode_batch(body), repeats)),
        ("batch: check", cpu_us(lambda: refused_rows(batch), repeats)),
        ("report: decode", cpu_us(lambda: batch_of_one(decode_report(single)), repeats)),
        ("report: check", cpu_us(lambda: refused_rows(batch_of_one(reports[0])), repeats)),
    ]
    job = Job("job")
    fold_us(job, [encode_batch(b) for b in node_batches(1024, 0)])
    steps = range(1, 6)
    all_us = min(fold_us(job, [encode_batch(b) for b in _but_one(1024, s)]) for s in steps)
    rows.append(("batch: decode, check and fold", all_us))
    return rows


def _but_one(world_size: int, step: int) -> list[Batch]:
    """Return the batches of a step that does not complete."""
    return node_batches(world_size, step)[:-1]


def step_row(world_size: int, steps: int) -> tuple[str, float]:
    """Return the CPU milliseconds of the batch that completes a step, the median of some."""
    job, costs = Job("job"), []
    template = node_batches(world_size, 0)
    for step in range(steps):
        for number, batch in enumerate(template):
            _renumber(batch, step)
            start = time.process_time()
            job.take(batch, _NOW_S)
            if number == len(template) - 1:
                costs.append((time.process_time() - start) * 1e3)
    return f"complete step of {world_size} ranks", float(np.median(costs[steps // 2 :]))


def _renumber(batch: Batch, step: int) -> None:
    """Make a batch one of another step, with other seconds."""
    rng = np.random.default_rng((batch.ranks[0], step))
    batch.sequences = [step] * len(batch)
    for columns in batch.steps:
        columns.step = step
        for kernel in columns.kernels:
            seconds = np.frombuffer(bytes(kernel.seconds))  # type: ignore[arg-type]
            noise = np.exp(0.01 * rng.standard_normal(len(seconds)))
            kernel.seconds = (seconds * noise).tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only try it")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1024, 4096, 10_000])
    options = parser.parse_args()
    repeats, steps = (20, 4) if options.quick else (500, 40)
    for name, cost_us in batch_rows(repeats):
        print(f"{name:40} {cost_us:9.0f} us")
    for world_size in options.ranks:
        name, cost_ms = step_row(world_size, steps)
        print(f"{name:40} {cost_ms:9.1f} ms")
    size = len(encode_batch(node_batches(NODE_RANKS, 0)[0]))
    single = len(msgspec.msgpack.encode(made_report(0, 0, NODE_RANKS)))
    print(f"{'bytes of a batch, of a report':40} {size:9d} B {single} B")


if __name__ == "__main__":
    main()
