"""Reports of a node's ranks, drawn by hypothesis, and batches of them.

Shapes: F = 6 features; N sums; M micro-batches.
"""

from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from libra.attention.cost import NUM_FEATURES
from libra.balancer.moments import NUM_SUMS
from libra.balancer.wire import (
    NUM_WAVE_SUMS,
    Coordinates,
    KernelMoments,
    KernelTotals,
    Report,
    StepTotals,
    WaveMoments,
)
from tests.simulated_job import BACKWARD, FORWARD

FIGURES = st.floats(0, 1e6)
COUNTS = st.integers(0, 2**53)
# What float32 holds exactly: points travel as that.
SHORT = st.floats(0, 1e6, width=32)


@st.composite
def step_totals(draw: st.DrawFn, step: int) -> StepTotals:
    kinds = draw(st.lists(st.sampled_from((FORWARD, BACKWARD)), max_size=3))
    features = st.tuples(*[FIGURES] * NUM_FEATURES)
    return StepTotals(
        step=step,
        policy_version=draw(COUNTS),
        seconds=draw(FIGURES),
        kernels=[
            KernelTotals(kind=kind, features=draw(features), seconds=draw(FIGURES))
            for kind in sorted(kinds, key=str)
        ],
        home_features=draw(features),
        home_pairs=draw(st.lists(FIGURES, max_size=3)),
        sent_bytes=draw(COUNTS),
        wait_seconds=draw(FIGURES),
        plan_mismatches=draw(COUNTS),
    )


@st.composite
def reports(draw: st.DrawFn, rank: int) -> Report:
    """Return a report of any figures, sound or not."""
    point = st.tuples(*[SHORT] * (NUM_FEATURES + 1))
    return Report(
        schema=1,
        job="job",
        run="run.1",
        attempt=3,
        node="node",
        agent=f"agent-{rank}",
        sequence=draw(COUNTS),
        rank=rank,
        world_size=64,
        coordinates=Coordinates(dp=rank, cp=1, pp=2, pool=3),
        moments=[
            KernelMoments(
                kind=kind,
                sums=draw(st.lists(FIGURES, min_size=NUM_SUMS, max_size=NUM_SUMS)),
                points=draw(st.lists(point, max_size=3)),
            )
            for kind in draw(st.sampled_from(((), (FORWARD,), (BACKWARD,), (BACKWARD, FORWARD))))
        ],
        steps=[draw(step_totals(step)) for step in draw(st.sampled_from(((), (4,), (5, 4))))],
        waves=[
            WaveMoments(
                transport=name,
                sums=draw(st.lists(FIGURES, min_size=NUM_WAVE_SUMS, max_size=NUM_WAVE_SUMS)),
            )
            for name in draw(st.sampled_from(((), ("gloo",), ("nccl", "gloo"))))
        ],
        dropped=draw(COUNTS),
        set_aside=draw(COUNTS),
        sent_s=1.5,
    )


def nodes(max_ranks: int = 4) -> st.SearchStrategy[list[Report]]:
    """Return strategies of reports of different ranks of one node."""
    return st.integers(1, max_ranks).flatmap(
        lambda count: st.tuples(*[reports(rank) for rank in range(count)]).map(list)
    )


def comparable(report: Report) -> Any:
    """Return a report without what packing may change: the order of what has a name, and zeros
    behind the last micro-batch.
    """
    plain = msgspec.to_builtins(report)
    for name in ("moments", "steps", "waves"):
        plain[name].sort(key=lambda item: str(item.get("kind", item.get("step", item))))
    for step in plain["steps"]:
        step["kernels"].sort(key=lambda kernel: (str(kernel["kind"]), kernel["seconds"]))
        step["home_pairs"] = np.trim_zeros(step["home_pairs"], "b")
    return plain
