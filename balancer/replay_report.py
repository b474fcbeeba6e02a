"""What ``libra replay`` prints: one JSON object, or tables for people.

Shapes: S steps, W ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from libra.balancer.causes import Diagnosis
from libra.balancer.recorded import Findings
from libra.balancer.whatif import Slowdown

_RANKS_SHOWN = 8


def as_object(job: Findings, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return all that a trace tells, for ``json.dumps``; seconds, and multiples of the ideal."""
    what, steps = job.what_if, job.trace.steps.tolist()
    ratios = (what.actual_s / what.ideal_s).tolist()
    cause: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return {
        **cause,
        "slowdown": what.slowdown,
        "slowdown_per_step": _named(zip(steps, ratios, strict=True)),
        "recorded_step_seconds": float(job.recorded_s.mean()),
        "ideal_step_seconds": float(what.ideal_s.mean()),
        "simulation_error": _error(job),
        "saved_seconds": asdict(job.remedies),
        "data": asdict(job.data),
        "stages": _named((stage, asdict(own)) for stage, own in what.stages.items()),
        "optypes": {name: asdict(own) for name, own in what.optypes.items()},
        "rank_slowdowns": {
            str(rank): _effect(what.ranks.get(rank)) | _evidence(job, place)
            for place, rank in enumerate(job.trace.ranks.tolist())
        },
        "dropped_steps": _named(job.dropped.items()),
        "mesh": asdict(job.trace.mesh),
    }


def show(job: Findings, diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print the sentence, and tables of what each part costs."""
    console = console or Console(highlight=False, soft_wrap=True)
    mesh, what = job.trace.mesh, job.what_if
    console.print(escape(diagnosis.sentence))
    console.print(
        f"{mesh.world_size} ranks (DP {mesh.dp_size}, PP {mesh.pp_size}, CP {mesh.cp_size}, TP "
        f"{mesh.tp_size}, {mesh.vpp_size} chunks a stage), {mesh.recorded_ranks} of them recorded"
    )
    console.print(_summary(job, diagnosis))
    console.print(_table("Stage", what.stages.items()))
    worst = sorted(what.ranks.items(), key=lambda item: -item[1].kept)[:_RANKS_SHOWN]
    console.print(_table("Rank", worst, _factors(job)))
    kinds = sorted(what.optypes.items(), key=lambda item: -item[1].kept)
    console.print(_table("Operation", kinds))
    if job.dropped:
        step, why = next(iter(job.dropped.items()))
        console.print(f"{len(job.dropped)} steps left out; step {step} {escape(why)}")


def _summary(job: Findings, diagnosis: Diagnosis) -> Table:
    table = Table("", "seconds per step", "share")
    step_s = job.step_s
    rows = {
        "recorded": float(job.recorded_s.mean()),
        "computed from operations": step_s,
        "ideal": float(job.what_if.ideal_s.mean()),
        **{f"lost: {cause}": seconds for cause, seconds in diagnosis.lost_seconds.items()},
        "recoverable by Libra": (diagnosis.recoverable_share or 0.0) * step_s,
    }
    for name, seconds in rows.items():
        table.add_row(name, f"{seconds:.3f}", f"{seconds / step_s:.1%}" if step_s else "")
    return table


def _table(
    title: str,
    rows: Iterable[tuple[int | str, Slowdown]],
    factors: Mapping[int | str, str] | None = None,
) -> Table:
    extra: Sequence[str] = ("seconds over peers'",) if factors else ()
    table = Table(title, "slowdown by it alone", "slowdown without it", *extra)
    for name, own in rows:
        more = (factors[name],) if factors else ()
        table.add_row(str(name), f"{own.kept:.3f}", f"{own.removed:.3f}", *more)
    return table


def _factors(job: Findings) -> dict[int | str, str]:
    evidence = job.evidence
    return {
        int(rank): f"{evidence.factor[place]:.2f} ± {evidence.error[place]:.2f}"
        for place, rank in enumerate(job.trace.ranks)
    }


def _effect(own: Slowdown | None) -> dict[str, float | None]:
    """Return what a rank does to the job; unknown of ranks that had little to do among many."""
    return {"kept": None, "removed": None} if own is None else asdict(own)


def _evidence(job: Findings, place: int) -> dict[str, float | None]:
    evidence = job.evidence
    return {
        "seconds_over_peers": float(evidence.factor[place]),
        "spread": float(evidence.spread[place]),
        "error": float(evidence.error[place]),
        "steps": evidence.steps,
        "slow": bool(evidence.named[place]),
    }


def _error(job: Findings) -> float:
    """Return how far computed steps are from recorded ones, relative, in the mean."""
    recorded = np.maximum(job.recorded_s, np.finfo(np.float64).tiny)
    return float(np.abs(job.what_if.actual_s / recorded - 1.0).mean())


def _named(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return a mapping whose keys JSON can hold."""
    return {str(key): value for key, value in items}
