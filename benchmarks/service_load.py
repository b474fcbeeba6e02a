"""Ten thousand simulated ranks against a real balancer: is a report lost, how long do answers
take, what does it cost, and does memory stay flat?

The ranks are 1,250 nodes in a process of their own (``load_generator.py``), over real HTTP on
loopback; every job's ranks step together, once a second.

.venv/bin/python benchmarks/service_load.py --quick
.venv/bin/python benchmarks/service_load.py --minutes 30 --sse 100 --pollers 1000
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.load_generator import WATCHED, raise_file_limit
from benchmarks.machine import machine
from benchmarks.process_usage import Usage, watch_process
from benchmarks.results_section import write_section
from benchmarks.tables import Row, table
from libra.balancer.steps import RING_STEPS
from tests.running import RunningBalancer, running_balancer

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
WARMUP_S = 5.0
SHOWN_STEPS = RING_STEPS
# By then a job drops a step for each that comes, and the allocator has found its size.
FULL_STEPS = RING_STEPS + 100
_GRACE_S = 180.0
_MINUTES = 10.0
# What pages change is seen in two.
_BESIDE_MINUTES, _PAGES = 2.0, 1000


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the balancer is to bear.

    Attributes:
        single: one request a rank, not one a node.
        sse: event streams that follow a job of five steps a second.
        pollers: long polls that wait for a policy.
    """

    ranks: int = 10_000
    seconds: float = 600.0
    interval_s: float = 1.0
    single: bool = False
    sse: int = 0
    pollers: int = 0


@dataclass(kw_only=True)
class Outcome:
    """What came of a load: the generator's figures, the balancer's, and its use of the machine."""

    load: Load
    sent: dict[str, Any]
    jobs: dict[str, dict[str, Any]]
    steps: dict[str, int]
    usage: Usage
    watchers: dict[str, Any] = field(default_factory=dict)

    @property
    def acknowledged(self) -> int:
        rows = self.sent["rows"]
        return int(rows["accepted"] + rows["duplicates"] + rows["late"])

    @property
    def lost(self) -> int:
        """Reports that were due and that no job has counted, but for those given up."""
        counted = sum(job["reports"] for job in self.jobs.values())
        return int(self.sent["due"] - self.sent["given_up"] - counted)

    @property
    def growth_bytes_per_hour(self) -> float | None:
        """Of the balancer's memory, once jobs drop as many steps as they gain; None before."""
        return self.usage.growth_bytes_per_hour(after_s=FULL_STEPS * self.load.interval_s)

    @property
    def missing_steps(self) -> int:
        """Steps that all ranks have reported and that are not complete."""
        sent: dict[str, int] = self.sent["steps"]
        # A job shows no more than its newest.
        return sum(min(number, SHOWN_STEPS) - self.steps[job] for job, number in sent.items())


def measure(load: Load) -> Outcome:
    """Run a balancer under a load and return what came of it."""
    raise_file_limit()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_balancer(Path(directory) / "balancer.sqlite") as balancer,
    ):
        with (
            watch_process(balancer.process.pid, skip_s=WARMUP_S) as usage,
            _watchers(balancer, load) as watchers,
        ):
            sent = _generate(balancer, load)
        if not sent["rows"].get("accepted"):
            raise RuntimeError(f"the balancer took nothing: {sent['refusal'] or sent['statuses']}")
        names = list(sent["steps"])
        return Outcome(
            load=load,
            sent=sent,
            steps={name: _complete_steps(balancer, name) for name in names},
            jobs={name: balancer.view(name) for name in names},
            usage=usage,
            watchers=watchers,
        )


def _generate(balancer: RunningBalancer, load: Load) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("load_generator.py"))]
    command += ["--port", balancer.url.rpartition(":")[2], "--ranks", str(load.ranks)]
    command += ["--seconds", str(load.seconds), "--interval", str(load.interval_s)]
    command += ["--warmup", str(min(WARMUP_S, load.seconds / 2))]
    command += ["--single"] * load.single + ["--watched"] * bool(load.sse or load.pollers)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=load.seconds + _GRACE_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the generator failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@contextlib.contextmanager
def _watchers(balancer: RunningBalancer, load: Load) -> Iterator[dict[str, Any]]:
    """Let pages and agents wait beside the reports; their figures are there at the end."""
    figures: dict[str, Any] = {}
    if not (load.sse or load.pollers):
        yield figures
        return
    command = [sys.executable, str(Path(__file__).with_name("load_watchers.py")), "--job", WATCHED]
    command += ["--port", balancer.url.rpartition(":")[2]]
    command += ["--sse", str(load.sse), "--pollers", str(load.pollers)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield figures
            # The end of its input is the end of its run.
            out, _ = process.communicate(timeout=_GRACE_S)
            figures.update(json.loads(out))
        finally:
            process.kill()


def _complete_steps(balancer: RunningBalancer, job: str, timeout_s: float = 30.0) -> int:
    """Return how many steps a job has complete, up to ``SHOWN_STEPS``."""
    deadline_s = time.monotonic() + timeout_s
    steps = -1
    while time.monotonic() < deadline_s:
        found = len(balancer.view(f"{job}/skew?last={SHOWN_STEPS}")["steps"])
        if found == steps:
            break
        steps = found
        time.sleep(0.5)
    return steps


def row(outcome: Outcome) -> Row:
    """Return the figures of a run as one row."""
    load, sent, usage = outcome.load, outcome.sent, outcome.usage
    latency, growth = sent["latency_ms"], outcome.growth_bytes_per_hour
    return {
        "ranks": load.ranks,
        "requests a second": sent["requests"] / load.seconds,
        "minutes": load.seconds / 60,
        "SSE clients": load.sse,
        "events a second": outcome.watchers.get("events_a_second", 0.0),
        "long polls": load.pollers,
        "reports": sent["due"],
        "lost": outcome.lost,
        "steps missing": outcome.missing_steps,
        "429s": sent["statuses"].get("429", 0),
        "p50 ms": latency["p50"],
        "p99 ms": latency["p99"],
        "max ms": latency["max"],
        "cores": usage.cores,
        "MiB": usage.last_bytes / 2**20,
        "MB an hour": None if growth is None else growth / 1e6,
    }


def describe(outcomes: Sequence[Outcome]) -> str:
    """Return the section of RESULTS.md."""
    text = machine("fastapi", "uvicorn", "msgspec", "numpy")
    figures = table([row(own) for own in outcomes])
    return (
        "Simulated ranks, one report a second each, one request a node, over HTTP on loopback. The "
        "generator shares the machine. A latency counts from the moment a report was due. Memory "
        f"is judged once every job's ring of steps is full, after {FULL_STEPS} steps."
        f"\n\n{text}.\n\n{figures}"
    )


def loads(args: argparse.Namespace) -> list[Load]:
    """Return the loads that a command asks for: unless it names watchers, one for long, and two
    that tell what a thousand pages change.
    """
    seconds = 10.0 if args.quick else 60.0 * args.minutes
    ranks = min(args.ranks, 256) if args.quick else args.ranks
    one = Load(
        ranks=ranks,
        seconds=seconds,
        interval_s=args.interval,
        single=args.single,
        sse=args.sse,
        pollers=args.pollers,
    )
    if args.sse or args.pollers or args.quick:
        return [one]
    beside = replace(one, seconds=min(seconds, 60.0 * _BESIDE_MINUTES))
    return [one, beside, replace(beside, sse=_PAGES)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=_MINUTES)
    add("--ranks", type=int, default=10_000)
    add("--interval", type=float, default=1.0, help="seconds between reports of a node")
    add("--single", action="store_true", help="one request a rank, not one a node")
    add("--sse", type=int, default=0, help="event streams of a job of five steps a second")
    add("--pollers", type=int, default=0, help="long polls that wait for a policy")
    add("--quick", action="store_true", help="few ranks for seconds, never into RESULTS.md")
    add("--json", action="store_true", help="print all figures, not a table")
    add("--write", action="store_true", help="into RESULTS.md as well")
    args = parser.parse_args()
    outcomes = [measure(load) for load in loads(args)]
    if args.json:
        print(json.dumps([{**row(own), "sent": own.sent} for own in outcomes], indent=2))
    else:
        print(table([row(own) for own in outcomes]))
    for own in outcomes:
        if own.sent["refusal"]:
            print(f"refused: {own.sent['refusal'][:300]}")
    if args.write and not args.quick:
        command = "make bench-service"
        if args.minutes != _MINUTES:
            command = f"benchmarks/service_load.py --minutes {args.minutes:g} --write"
        write_section(RESULTS, "service-load", describe(outcomes), command=command)


if __name__ == "__main__":
    main()
