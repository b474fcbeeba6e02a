"""A recorded job, reported to a real balancer as if its ranks ran now.

A trace tells how long each operation took and nothing of its work: every operation counts as one
tile, so the model can only say what an operation takes on average.

Shapes: W ranks; n operations.
"""

from collections.abc import Sequence

import numpy as np

from libra.attention.observer import Direction, KernelKind
from libra.balancer.batch import batch_of, encode_batch
from libra.balancer.moments import Moments
from libra.balancer.trace import BACKWARD, FORWARD, Trace
from libra.balancer.wire import Coordinates, KernelMoments, KernelTotals, Report, StepTotals
from tests.running import MSGPACK, RunningBalancer

_OPERATIONS: dict[Direction, str] = {"forward": FORWARD, "backward": BACKWARD}
_NODE_RANKS = 8


def replay(trace: Trace, balancer: RunningBalancer, job: str, steps: int | None = None) -> int:
    """Report the trace's steps, in order; return how many."""
    for index in range(len(trace.steps) if steps is None else steps):
        reports = _reports(trace, job, index)
        for first in range(0, len(reports), _NODE_RANKS):
            batch = batch_of(reports[first : first + _NODE_RANKS])
            path = f"/api/v1/jobs/{job}/batches"
            answer = balancer.client.post(path, content=encode_batch(batch), headers=MSGPACK)
            assert answer.status_code == 202, answer.text
    return len(trace.steps) if steps is None else steps


def _reports(trace: Trace, job: str, index: int) -> Sequence[Report]:
    ranks = len(trace.ranks)
    step_s = float(trace.recorded_seconds()[index])
    moments: list[list[KernelMoments]] = [[] for _ in range(ranks)]
    totals: list[list[KernelTotals]] = [[] for _ in range(ranks)]
    for direction, name in _OPERATIONS.items():
        kind = KernelKind(
            device="cuda",
            backend="recorded",
            dtype="bfloat16",
            head_dim=128,
            group_heads=1,
            direction=direction,
        )
        own = (trace.step == index) & trace.is_any(name)
        for worker in range(ranks):
            seconds = trace.duration_s[own & (trace.worker == worker)]
            calls, sums = float(len(seconds)), Moments()
            sums.add(np.tile([1.0, 1.0, 1.0, 1.0, 1.0, 0.0], (len(seconds), 1)), seconds)
            moments[worker].append(KernelMoments(kind=kind, sums=sums.sums.tolist()))
            features = (calls, calls, calls, calls, calls, 0.0)
            total = float(seconds.sum())
            totals[worker].append(KernelTotals(kind=kind, features=features, seconds=total))
    return [
        Report(
            schema=1,
            job=job,
            node=f"host-{worker // _NODE_RANKS}",
            agent=f"agent-{worker}",
            sequence=index,
            rank=worker,
            world_size=ranks,
            coordinates=Coordinates(
                dp=int(trace.dp_ranks[worker]),
                cp=int(trace.lanes[worker]),
                pp=int(trace.stages[worker]),
                pool=int(trace.dp_ranks[worker]) // 8,
            ),
            moments=moments[worker],
            steps=[
                StepTotals(
                    step=int(trace.steps[index]),
                    policy_version=0,
                    seconds=step_s,
                    kernels=totals[worker],
                    home_features=totals[worker][0].features,
                )
            ],
        )
        for worker in range(ranks)
    ]
