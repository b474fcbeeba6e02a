"""Kill -9 the balancer at random moments under load: what is lost, and when is it back?

A job reports, an operator publishes and changes the mode, and every few seconds the process is
killed and begins again on its store. Looked for are acknowledged policies and modes that are
gone, complete steps that were acknowledged longer than a flush interval before the kill and are
gone, and the seconds until ``/readyz`` says yes.

.venv/bin/python benchmarks/kill.py --quick
.venv/bin/python benchmarks/kill.py --kills 200 --seed 3
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kill_load import Acknowledged, KillLoad
from benchmarks.machine import machine
from benchmarks.results_section import write_section
from benchmarks.tables import Row, table
from libra.balancer.steps import RING_STEPS
from libra.balancer.store_settings import StoreSettings
from tests.running import RunningBalancer, running_balancer, wait_for

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
# Of a transaction that is under way when the interval ends.
_COMMIT_S = 0.5
_SHOWN_STEPS = RING_STEPS


@dataclass(kw_only=True)
class Tally:
    """What came of the kills.

    Attributes:
        late_steps: acknowledged steps lost though they were older than a flush interval.
        lost_s: for each kill, how long before it the oldest lost step was acknowledged.
    """

    kills: int = 0
    policies: int = 0
    steps: int = 0
    lost_policies: int = 0
    lost_modes: int = 0
    late_steps: int = 0
    lost_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)


def run(kills: int, *, seed: int, window_s: float = 3.0) -> Tally:
    """Kill a balancer this often, each time within a window after it was ready."""
    rng, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "balancer.sqlite"
        load = KillLoad()
        for _ in range(kills):
            with ExitStack() as stack:
                balancer = _started(stack, store, tally)
                _look(balancer, load.acknowledged, tally)
                load.start(balancer.url)
                time.sleep(rng.uniform(0.1, window_s))
                killed_s = time.monotonic()
                balancer.process.kill()
                load.stop(killed_s)
            tally.kills += 1
        with ExitStack() as stack:
            _look(_started(stack, store, tally), load.acknowledged, tally)
    tally.policies, tally.steps = load.totals
    return tally


def _started(stack: ExitStack, store: Path, tally: Tally) -> RunningBalancer:
    began_s = time.monotonic()
    balancer = stack.enter_context(running_balancer(store))
    wait_for(lambda: balancer.client.get("/readyz").status_code == 200)
    tally.ready_s.append(time.monotonic() - began_s)
    return balancer


def _look(balancer: RunningBalancer, acknowledged: Acknowledged | None, tally: Tally) -> None:
    """Compare what a balancer knows after a kill with what was acknowledged before."""
    if acknowledged is None:
        return
    path = f"/api/v1/jobs/{KillLoad.job}"
    found = balancer.client.get(path)
    if found.status_code == 404:
        tally.lost_policies += len(acknowledged.policies)
        tally.late_steps += sum(_is_late(at, acknowledged) for at in acknowledged.steps.values())
        return
    rows = balancer.view(f"{KillLoad.job}/policies")["policies"]
    kept = {row["version"]: row["checksum"] for row in rows}
    oldest = min(kept, default=0)
    tally.lost_policies += sum(
        kept.get(version) != checksum
        for version, checksum in acknowledged.policies.items()
        if version >= oldest
    )
    mode = acknowledged.mode
    # A change that was under way may have happened.
    tally.lost_modes += mode is not None and found.json()["mode"] not in (mode, acknowledged.tried)
    shown = balancer.view(f"{KillLoad.job}/skew?last={_SHOWN_STEPS}")["steps"]
    first = shown[0] if shown else 0
    lost = [at for step, at in acknowledged.steps.items() if step >= first and step not in shown]
    tally.late_steps += sum(_is_late(at_s, acknowledged) for at_s in lost)
    tally.lost_s.append(acknowledged.killed_s - min(lost) if lost else 0.0)


def _is_late(at_s: float, acknowledged: Acknowledged) -> bool:
    return acknowledged.killed_s - at_s > StoreSettings().flush_interval_s + _COMMIT_S


def row(tally: Tally) -> Row:
    """Return the figures as one row."""
    ready = sorted(tally.ready_s)
    return {
        "kills": tally.kills,
        "policies acknowledged": tally.policies,
        "of them lost": tally.lost_policies,
        "modes lost": tally.lost_modes,
        "steps acknowledged": tally.steps,
        "lost though older than a flush": tally.late_steps,
        "oldest lost, s": max(tally.lost_s, default=0.0),
        "ready after, median s": ready[len(ready) // 2],
        "worst s": ready[-1],
    }


def describe(tallies: Sequence[Tally]) -> str:
    """Return the section of RESULTS.md."""
    figures = table([row(own) for own in tallies])
    return (
        "The process is killed at a random moment under load and begins again on its store. A "
        f"flush interval is {StoreSettings().flush_interval_s:g} s; ready counts from the start of "
        f"the new process.\n\n{machine('fastapi', 'uvicorn')}.\n\n{figures}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kills", type=int, default=200)
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="three kills, never into RESULTS.md")
    add("--json", action="store_true", help="print an object, not a table")
    add("--write", action="store_true", help="into RESULTS.md as well")
    args = parser.parse_args()
    tally = run(3 if args.quick else args.kills, seed=args.seed)
    print(json.dumps(row(tally), indent=2) if args.json else table([row(tally)]))
    if args.write and not args.quick:
        write_section(RESULTS, "kill", describe([tally]), command="make bench-service")


if __name__ == "__main__":
    main()
