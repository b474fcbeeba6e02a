"""A thousand open pages: what following a job costs the balancer, and what it costs a report.

.venv/bin/python benchmarks/event_clients.py
.venv/bin/python benchmarks/event_clients.py --quick
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import machine
from benchmarks.raw_clients import allow_files, clients, count_events
from benchmarks.tables import Row, table
from tests.running import RunningBalancer, make_report, running_balancer

_JOB, _BESIDE = "followed", "beside"


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the balancer is asked to do.

    Attributes:
        hz: steps a second of the job that is followed.
        reports_hz: reports a second of another job, whose answers are timed.
    """

    clients: int
    seconds: float
    hz: float = 5.0
    reports_hz: float = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few pages for a moment")
    add("--clients", type=int, default=1000)
    add("--seconds", type=float, default=30.0)
    add("--rounds", type=int, default=3, help="of each, taken in turn")
    args = parser.parse_args()
    load = Load(clients=args.clients, seconds=args.seconds)
    if args.quick:
        load = Load(clients=50, seconds=2.0)
    allow_files(load.clients)
    print(machine("uvicorn", "uvloop", "httptools"))
    print(table(measure(load, 1 if args.quick else args.rounds)))


def measure(load: Load, rounds: int) -> list[Row]:
    """Return rows without pages and with them, in turn; the ratio is to the row before."""
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_balancer(Path(folder) / "store.sqlite") as balancer,
    ):
        stream = _Reports(balancer)
        for _ in range(rounds):
            without = _measure(stream, load, 0)
            followed = _measure(stream, load, load.clients)
            ratio = float(str(followed["p99, ms"])) / float(str(without["p99, ms"]))
            rows += [without, followed | {"p99 over without": round(ratio, 2)}]
    return rows


class _Reports:
    """Reports of two jobs, at their own rates."""

    def __init__(self, balancer: RunningBalancer) -> None:
        self.balancer = balancer
        self.process = psutil.Process(balancer.process.pid)
        self._sequence = 0
        for job in (_JOB, _BESIDE):
            self.send(job)

    def send(self, job: str) -> float:
        """Send a report that is a whole step; return the seconds until its answer."""
        self._sequence += 1
        report = make_report(job, sequence=self._sequence, world_size=1)
        start = time.perf_counter()
        assert self.balancer.send(report).status_code == 202
        return time.perf_counter() - start

    def run(self, load: Load) -> list[float]:
        """Keep both rates; return the seconds of the timed answers."""
        took, start = [], time.perf_counter()
        next_step = next_report = start
        while (now := time.perf_counter()) < start + load.seconds:
            if now >= next_step:
                next_step += 1 / load.hz
                self.send(_JOB)
            if now >= next_report:
                next_report += 1 / load.reports_hz
                took.append(self.send(_BESIDE))
            time.sleep(max(0.0, min(next_step, next_report) - time.perf_counter()))
        return took


def _measure(stream: _Reports, load: Load, number: int) -> Row:
    ours, theirs = multiprocessing.Pipe()
    args = (theirs, stream.balancer.url, number, load.seconds + 1.0)
    readers = multiprocessing.get_context("spawn").Process(target=_follow, args=args)
    readers.start()
    assert ours.poll(120), "the pages did not open"
    ours.recv()
    memory = stream.process.memory_info().rss
    used, start = stream.process.cpu_times(), time.perf_counter()
    took = stream.run(load)
    done, seconds = stream.process.cpu_times(), time.perf_counter() - start
    assert ours.poll(120), "the pages told nothing"
    events = ours.recv()
    readers.join(60)
    return {
        "pages": number,
        "events a second": round(events / load.seconds),
        "cores": round((done.user + done.system - used.user - used.system) / seconds, 3),
        "MB": round(memory / 1e6, 1),
        "p50, ms": round(1e3 * float(np.quantile(took, 0.5)), 2),
        "p99, ms": round(1e3 * float(np.quantile(took, 0.99)), 2),
    }


def _follow(told: Connection, url: str, number: int, seconds: float) -> None:
    """Be so many pages, in a process of their own; tell when all are open, and what came."""
    allow_files(number)
    with clients(url, f"/api/v1/jobs/{_JOB}/events", number) as opened:
        count_events(opened, time.monotonic() + 1.0)
        told.send("open")
        told.send(count_events(opened, time.monotonic() + seconds))


if __name__ == "__main__":
    main()
