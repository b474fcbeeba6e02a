"""How long collections of garbage hold up the event loop, with many large jobs in memory.

.venv/bin/python benchmarks/gc_pauses.py
.venv/bin/python benchmarks/gc_pauses.py --quick
"""

import argparse
import gc
import random
import sys
import time
from pathlib import Path

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import libra.balancer.app  # noqa: F401
from benchmarks.load_bodies import NODE_RANKS, Body, Node, batch_body
from benchmarks.machine import machine
from benchmarks.tables import Row, table
from libra.balancer.batch import decode_batch
from libra.balancer.job import Job
from libra.balancer.process import ease_collections

_NOW_S = 1_700_000_000.0
_WARMUP_STEPS = 2


class Pauses:
    """The seconds of each collection, by generation, from now on."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {0: [], 1: [], 2: []}
        self._since_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._since_s = time.thread_time()
        else:
            self.seconds[info["generation"]].append(time.thread_time() - self._since_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few jobs of few ranks")
    add("--jobs", type=int, default=30)
    add("--ranks", type=int, default=4096)
    add("--steps", type=int, default=10)
    args = parser.parse_args()
    jobs, ranks = (3, 64) if args.quick else (args.jobs, args.ranks)
    print(machine("msgspec", "numpy"))
    print(table(measure(jobs, ranks, args.steps)))


def measure(num_jobs: int, ranks: int, steps: int) -> list[Row]:
    """Return a row for each generation: collections while jobs step, as the balancer sets it."""
    bodies, jobs = _bodies(ranks), [Job("job") for _ in range(num_jobs)]
    ease_collections()
    for step in range(_WARMUP_STEPS):
        _step(jobs, bodies, step)
    pauses = Pauses()
    for step in range(_WARMUP_STEPS, steps):
        _step(jobs, bodies, step)
    gc.collect()
    return [
        {
            "generation": generation,
            "collections": len(seconds),
            "longest, CPU ms": round(1e3 * max(seconds, default=0.0), 2),
            "all, CPU ms": round(1e3 * sum(seconds), 1),
        }
        for generation, seconds in pauses.seconds.items()
    ]


def _bodies(ranks: int) -> list[Body]:
    rng = random.Random(0)
    return [
        batch_body(Node(job="job", world_size=ranks, first_rank=first, ranks=NODE_RANKS), rng)
        for first in range(0, ranks, NODE_RANKS)
    ]


def _step(jobs: list[Job], bodies: list[Body], step: int) -> None:
    encoded = [body.fill(step, 1.0 + 0.01 * (step % 7)) for body in bodies]
    for job in jobs:
        for body in encoded:
            job.take(decode_batch(body), _NOW_S + step)
        job.new_steps()


if __name__ == "__main__":
    main()
