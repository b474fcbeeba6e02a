"""What an agent costs the training it watches, beside balancers of every sort.

One rank trains in pairs of blocks, one with an agent and one without, in an order drawn for each
pair; a ratio is the median step with the agent over that without. Its interval is the middle 95 %
of a bootstrap over pairs. agent CPU: CPU seconds of the agent's thread over the steps' wall time;
meter: CPU seconds of the calls that the training thread makes, over the same; a block's first
steps, in which an agent starts and reports first, count for none of these; cost of 1 s: what
both take of a step of a second. The control has no agent at all: what two equal blocks differ by
is what the machine does to them. The balancer runs in a process of its own, and so do the other
ranks of a node of eight, whose relay the measured rank is ("relay leader") or has.

.venv/bin/python benchmarks/do_no_harm.py --quick
.venv/bin/python benchmarks/do_no_harm.py --write
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harm_scenes import MODES, Scene, scene
from benchmarks.machine import machine
from benchmarks.results_section import write_section
from benchmarks.tables import Row, table
from libra.agent.meter import StepMeter
from tests.harm import HarmJob, HarmRun, Trainer
from tests.layouts import two_sequence_layout
from tests.ranks import run_ranks
from tests.test_meter import note

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_TIMEOUT_S = 4 * 3600.0
_RESAMPLES = 2000
_WARM_UP_STEPS = 20
# More than an agent takes until its first report.
_SETTLE_STEPS = 12
_MIB = float(1 << 20)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """How a mode is measured."""

    pairs: int
    steps: int
    tokens: int
    seed: int


@dataclass(kw_only=True)
class Pairs:
    """What the pairs of one mode came to; ``resident`` is memory in bytes after each."""

    on: list[HarmRun] = field(default_factory=list)
    off: list[HarmRun] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few short blocks, never into RESULTS.md")
    add("--json", action="store_true", help="print a list of objects, not a table")
    add("--write", action="store_true", help="into RESULTS.md as well")
    add("--modes", nargs="+", choices=MODES, default=MODES, help="balancers (all)")
    add("--pairs", type=int, default=14, help="pairs of blocks a balancer (%(default)s)")
    add("--steps", type=int, default=20, help="steps of a block (%(default)s)")
    add("--tokens", type=int, default=4096, help="of a packed sequence (%(default)s)")
    add("--seed", type=int, default=0, help="of the order within pairs (%(default)s)")
    args = parser.parse_args()
    blocks = Blocks(
        pairs=2 if args.quick else args.pairs,
        steps=20 if args.quick else args.steps,
        tokens=512 if args.quick else args.tokens,
        seed=args.seed,
    )
    rows = [measure(mode, blocks) for mode in args.modes]
    print(json.dumps(rows, indent=2) if args.json else table(rows))
    if args.write and not args.quick:
        where = machine("torch", "httpx")
        text = f"{where}; one rank, one thread.\n\n{table(rows)}"
        write_section(RESULTS, "do-no-harm", text, command="make bench-service")


def measure(mode: str, blocks: Blocks) -> Row:
    """Return the row of a mode's figures."""
    with scene(mode) as around:
        (pairs,) = run_ranks(_rank, 1, around, blocks, timeout_s=_TIMEOUT_S)
    ratios = np.array(
        [
            np.median(on.step_s) / np.median(off.step_s)
            for on, off in zip(pairs.on, pairs.off, strict=True)
        ]
    )
    low, high = bootstrap(ratios, np.random.default_rng(blocks.seed))
    wall_s = sum(sum(run.step_s) for run in pairs.on)
    step_s = float(np.median([step_s for run in pairs.on for step_s in run.step_s]))
    agent_share, meter_s = sum(run.agent_cpu_s for run in pairs.on) / wall_s, meter_cpu_s()
    return {
        "balancer": mode,
        "step ms": 1e3 * step_s,
        "on / off": float(np.exp(np.log(ratios).mean())),
        "95 %": f"{low:.4f} to {high:.4f}",
        "agent CPU %": 100 * agent_share,
        "meter %": 100 * meter_s / step_s,
        "cost of 1 s %": 100 * (agent_share + meter_s),
        "reports": sum(run.reports for run in pairs.on),
        "same losses": all(
            on.losses == off.losses for on, off in zip(pairs.on, pairs.off, strict=True)
        ),
        "memory MiB": (pairs.resident[-1] - pairs.resident[len(pairs.resident) // 2]) / _MIB,
    }


def bootstrap(ratios: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    """Return the middle 95 % of the geometric mean of ratios [n] over resamples of them."""
    drawn = rng.integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.exp(np.log(ratios)[drawn].mean(axis=1)), [0.025, 0.975])
    return float(low), float(high)


def meter_cpu_s(steps: int = 2000) -> float:
    """Return CPU seconds of a step's calls of the meter: one layer, forward and backward."""
    meter = StepMeter(sink=lambda _: None)
    layouts = [two_sequence_layout(step=step) for step in range(steps)]
    began_s = time.thread_time()
    for layout in layouts:
        meter.begin(layout)
        note(meter)
        note(meter)
        meter.end_step()
    return (time.thread_time() - began_s) / steps


def _rank(_: int, around: Scene, blocks: Blocks) -> Pairs:
    torch.set_num_threads(1)
    trainer = Trainer(0, HarmJob(tokens=blocks.tokens, agent=around.agent))
    for url in (None, around.url or None):
        trainer.run(_WARM_UP_STEPS, balancer=url)
    rng, pairs = np.random.default_rng(blocks.seed), Pairs()
    process = psutil.Process()
    for _ in range(blocks.pairs):
        for on in rng.permutation([True, False]):
            done = trainer.run(
                blocks.steps,
                balancer=(around.url or None) if on else None,
                settle_steps=_SETTLE_STEPS,
            )
            (pairs.on if on else pairs.off).append(done)
        pairs.resident.append(process.memory_info().rss)
    return pairs


if __name__ == "__main__":
    main()
