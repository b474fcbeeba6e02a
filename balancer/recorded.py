"""What a recorded job's operations tell of its steps, before any cause is named.

Shapes: S steps.
"""

from dataclasses import dataclass

from libra.balancer.rank_evidence import RankEvidence, rank_evidence
from libra.balancer.remedies import DataEvidence, Remedies, data_evidence, remedies
from libra.balancer.trace import Float64, Trace
from libra.balancer.whatif import Replay, WhatIf, what_if
from libra.balancer.whole_steps import whole_steps


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What a trace tells of its job.

    Attributes:
        trace: the steps that were judged.
        recorded_s: their durations as recorded [S].
        dropped: number of each step that was left out, and why.
        what_if: slowdown of steps, and of each part of the operations.
        evidence: how slow ranks are.
        data: how micro-batches differ.
        remedies: seconds that each remedy saves.
    """

    trace: Trace
    recorded_s: Float64
    dropped: dict[int, str]
    what_if: WhatIf
    evidence: RankEvidence
    data: DataEvidence
    remedies: Remedies

    @property
    def step_s(self) -> float:
        """Seconds of a mean step, computed from what its operations wait for."""
        return float(self.what_if.actual_s.mean())


def examine(trace: Trace) -> Findings:
    """Return what a trace tells of its job.

    Raises:
        ValueError: no step can be computed, or the trace lacks all ranks of some place.
    """
    whole, dropped = whole_steps(trace)
    replay = Replay(whole)
    dropped |= dict.fromkeys(replay.circular, "has operations that wait for each other in a circle")
    evidence = rank_evidence(replay.trace, replay.graph.work_s)
    return Findings(
        trace=replay.trace,
        recorded_s=replay.trace.recorded_seconds(),
        dropped=dict(sorted(dropped.items())),
        what_if=what_if(replay),
        evidence=evidence,
        data=data_evidence(replay),
        remedies=remedies(replay, evidence),
    )
