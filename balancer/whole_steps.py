"""Which steps of a trace are whole: a step that lacks ranks or micro-batches cannot be replayed.

Shapes: N operations, S steps, W recorded ranks.
"""

import numpy as np

from libra.balancer.trace import BACKWARD, COMPUTE, FORWARD, Bool, Int64, Trace


def whole_steps(trace: Trace) -> tuple[Trace, dict[int, str]]:
    """Return the trace without steps that are not whole, and why each of those was dropped.

    Raises:
        ValueError: no step is whole; says what the first lacks.
    """
    check_mesh(trace)
    forward, backward = _counts(trace, FORWARD), _counts(trace, BACKWARD)
    missing = _counts(trace, *COMPUTE) == 0
    uneven = np.zeros(len(trace.steps), dtype=bool)
    if forward.any() and backward.any():
        uneven |= (forward != backward).any(axis=1)
    for counts in (forward, backward):
        uneven |= _stages_differ(trace, counts)
    dropped = {}
    for step in np.flatnonzero(missing.any(axis=1) | uneven).tolist():
        ranks = ", ".join(map(str, trace.ranks[missing[step]][:4]))
        lacking = int(missing[step].sum())
        dropped[int(trace.steps[step])] = (
            f"lacks {lacking} of {len(trace.ranks)} ranks ({ranks}{', ...' if lacking > 4 else ''})"
            if lacking
            else "lacks micro-batches of some ranks"
        )
    keep = ~(missing.any(axis=1) | uneven)
    if not keep.any():
        first, why = next(iter(dropped.items()))
        raise ValueError(f"no step is whole: step {first} {why}; record every rank of a step")
    return (trace.only(keep) if dropped else trace), dropped


def check_mesh(trace: Trace) -> None:
    """Refuse a trace without any rank at some place of the mesh.

    Raises:
        ValueError: names the first such place.
    """
    mesh = trace.mesh
    there = np.zeros((mesh.dp_size, mesh.pp_size), dtype=bool)
    there[trace.dp_ranks, trace.stages] = True
    if not there.all():
        dp_rank, stage = np.argwhere(~there)[0]
        raise ValueError(
            f"no rank is at dp_rank {dp_rank}, stage {stage}, of {mesh.dp_size} by "
            f"{mesh.pp_size}; record at least one rank at each"
        )


def _counts(trace: Trace, *names: str) -> Int64:
    """Return how many operations of some kinds each rank has in each step [S, W]."""
    ranks = len(trace.ranks)
    own = trace.is_any(*names)
    flat = np.bincount(
        trace.step[own] * ranks + trace.worker[own], minlength=len(trace.steps) * ranks
    )
    return flat.reshape(len(trace.steps), ranks)


def _stages_differ(trace: Trace, counts: Int64) -> Bool:
    """Tell in which steps a pipeline's stages counted differently [S]."""
    columns = trace.dp_ranks * (int(trace.lanes.max()) + 1) + trace.lanes
    size = int(columns.max()) + 1
    flat = np.arange(len(counts))[:, None] * size + columns
    most = np.zeros(len(counts) * size, np.int64)
    np.maximum.at(most, flat.ravel(), counts.ravel())
    return np.asarray((most[flat] != counts).any(axis=1))
