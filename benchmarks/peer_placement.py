"""Libra's placement beside other projects' own planners, on the same costs and one thread.

Each is called once to warm up and then five times, of which the fastest counts; one that takes
seconds is called once more only. Conversions to what a planner takes are not timed. Balance is
the heaviest cell over the mean; the least that any placement could have stands in the first row.

Shapes: N sequences; M cells of P sequences each.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparators import least_load
from benchmarks.comparison import whole_sequence_ways
from benchmarks.lengths import Int64
from benchmarks.options import positive
from benchmarks.peer_imports import NotInstalledError, import_alone
from benchmarks.placement_case import PlacementCase, drawn_steps
from benchmarks.tables import Row, Value, table

_BEST_OF = 5
_SLOW_S = 2.0
# Megatron's samples of one document: as many ranks as they need at this share of the window.
_CP = 8

# Called without arguments, it plans; the second turns its answer into max / mean.
Prepared = tuple[Callable[[], Any], Callable[[Any], float]]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What every planner gets.

    Attributes:
        costs: [N] integers.
        cells: M.
        tokens: of a sequence.
        folders: where checkouts of other projects lie.
    """

    costs: Int64
    cells: int
    tokens: int
    folders: Sequence[Path]

    def max_over_mean(self, cells: Any) -> float:
        """Return the heaviest cell over the mean.

        Raises:
            ValueError: cells do not hold each sequence once, P of them each.
        """
        own = np.array([list(cell) for cell in cells])
        if own.shape != (self.cells, len(self.costs) // self.cells):
            raise ValueError(f"cells of {own.shape} are not of equal count")
        if not np.array_equal(np.sort(own, axis=None), np.arange(len(self.costs))):
            raise ValueError("not each sequence once")
        return float(self.costs[own].sum(axis=1).max() * self.cells / self.costs.sum())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--n", type=positive, default=8192, help="sequences, N (%(default)s)")
    add("--cells", type=positive, default=1024, help="M (%(default)s)")
    add("--lengths", default="libra-like", metavar="FILE|NAME", help="(%(default)s)")
    add("--tokens", type=positive, default=262144, help="of a sequence (%(default)s)")
    add("--seed", type=int, default=0)
    add("--peer-path", type=Path, nargs="+", default=[], metavar="DIR", help="hold their packages")
    add("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), help="(all)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return a row for each planner.

    Raises:
        ValueError: a setting is not what it must be.
    """
    if args.n % args.cells:
        raise ValueError(f"n={args.n}: must be a multiple of cells={args.cells}")
    case = PlacementCase(
        lengths=args.lengths,
        tokens=args.tokens,
        batch=args.n,
        pool=args.n // args.cells,
        steps=1,
        seed=args.seed,
    )
    costs = next(drawn_steps(case)).costs
    problem = Problem(costs=costs, cells=args.cells, tokens=args.tokens, folders=args.peer_path)
    bound = least_load(costs, args.cells) * args.cells / int(costs.sum())
    rows: list[Row] = [{"planner": "bound", "max/mean": bound, "ms": None, "note": ""}]
    for name, way in whole_sequence_ways(args.cells, args.tokens, args.seed).items():
        own = (lambda way=way: way(costs), problem.max_over_mean)
        rows.append(_timed(name, own, "" if name == "Libra" else "written here"))
    rows += [_peer(name, problem) for name in args.peers]
    return {"n": args.n, "cells": args.cells, "lengths": args.lengths, "planners": rows}


def shown(figures: dict[str, Any]) -> str:
    """Return the rows as a table, balance to six places: planners differ in the last ones."""
    rows = [{**row, "max/mean": _places(row["max/mean"])} for row in figures["planners"]]
    return table(rows)


def _places(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def _peer(name: str, problem: Problem) -> Row:
    prepare, note = PEERS[name]
    try:
        return _timed(name, prepare(problem), note)
    except NotInstalledError:
        return _without(name, "not installed")
    except Exception as error:  # whatever another project's code raises is its row's note
        return _without(name, f"not run: {type(error).__name__}: {str(error)[:80]}")


def _timed(name: str, prepared: Prepared, note: str) -> dict[str, Value]:
    plan, judge = prepared
    start = time.perf_counter()
    answer = plan()
    repeats = _BEST_OF if time.perf_counter() - start < _SLOW_S else 1
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        answer = plan()
        spent.append(time.perf_counter() - start)
    return {"planner": name, "max/mean": judge(answer), "ms": 1e3 * min(spent), "note": note}


def _without(name: str, note: str) -> Row:
    return {"planner": name, "max/mean": None, "ms": None, "note": note}


def _verl(problem: Problem) -> Prepared:
    module = import_alone(
        "verl.utils.seqlen_balancing",
        problem.folders,
        ("verl.protocol", "verl.utils.tensordict_utils", "verl.utils.device"),
    )
    return _equal_size(module, problem)


def _openrlhf(problem: Problem) -> Prepared:
    module = import_alone("openrlhf.utils.seqlen_balancing", problem.folders)
    return _equal_size(module, problem)


def _equal_size(module: Any, problem: Problem) -> Prepared:
    costs = problem.costs.tolist()

    def plan() -> Any:
        return module.get_seqlen_balanced_partitions(costs, problem.cells, equal_size=True)

    return plan, problem.max_over_mean


def _magi(problem: Problem) -> Prepared:
    module = import_alone(
        "magi_attention.meta.solver.dispatch_solver",
        problem.folders,
        (
            "magi_attention.common",
            "magi_attention.utils.debug",
            "magi_attention.utils.sparse_utils",
        ),
    )
    solver = module.DispatchSolver(module.MinHeapDispatchAlg())
    jobs = module.DispatchJob.from_job_list(problem.costs.tolist())
    data = module.DispatchData(jobs=jobs, num_buckets=problem.cells)
    return lambda: solver.solve(data).bucket_partitions, problem.max_over_mean


def _torch(problem: Problem) -> Prepared:
    try:
        import torch
        from torch.distributed.tensor.experimental._context_parallel import _load_balancer as own
    except ImportError as error:
        raise NotInstalledError("torch") from error
    torch.set_num_threads(1)
    balancer: Any = own
    costs = torch.from_numpy(problem.costs)
    return (
        lambda: balancer._PTRRLoadBalancer.ptrr_scheduling(costs, problem.cells),
        lambda cells: problem.max_over_mean(cells.tolist()),
    )


def _megatron(problem: Problem) -> Prepared:
    """Each sequence is one sample of the length whose causal pairs cost as much; M ranks."""
    module = import_alone(
        "megatron.core.pipeline_parallel.hybrid_cp_schedule",
        problem.folders,
        ("megatron.core.parallel_state", "megatron.core.rerun_state_machine"),
    )
    lengths = np.sqrt(problem.costs / problem.costs.max()) * problem.tokens
    samples = list(enumerate(np.maximum(lengths.astype(np.int64), 1).tolist()))

    class Ranks:
        def size(self) -> int:
            return problem.cells

    def plan() -> Any:
        own = module.BalancedCPScheduler(-(-problem.tokens // _CP), Ranks())
        return own.get_groups_and_subsamples(samples, None)[1]

    def judge(rounds: Any) -> float:
        cost = dict(samples)
        slowest, total = 0.0, 0.0
        for ranks in rounds:
            shared: dict[int, int] = {}
            for own in ranks:
                for sample in own:
                    shared[sample] = shared.get(sample, 0) + 1
            loads = [sum(cost[sample] ** 2 / shared[sample] for sample in own) for own in ranks]
            slowest, total = slowest + max(loads), total + sum(loads)
        return slowest * problem.cells / total

    return plan, judge


# By name: what makes a planner ready, and what a reader must know of it.
PEERS: dict[str, tuple[Callable[[Problem], Prepared], str]] = {
    "verl": (_verl, "Karmarkar-Karp, equal size"),
    "OpenRLHF": (_openrlhf, "Karmarkar-Karp, equal size"),
    "MagiAttention": (_magi, "min-heap"),
    "torch": (_torch, "ptrr_scheduling"),
    "Megatron-LM": (_megatron, "splits sequences over ranks; slowest of each round, summed"),
}
