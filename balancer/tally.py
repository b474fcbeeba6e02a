"""What is counted of one job's events, for the metrics: skew by step, and how policies spread."""

from collections.abc import Sequence

import numpy as np

from libra.balancer.events import Event
from libra.balancer.histogram import Exemplar, Histogram
from libra.balancer.step_record import StepRecord
from libra.balancer.telemetry import Telemetry

SKEW = (1.0, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 1.75, 2.0, 3.0, 5.0)
# Policies that are watched at once; jobs that never run one must not pile them up.
_MAX_SPREADING = 64


class Tally:
    """Counts of one job since the balancer loaded it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.skew = Histogram(SKEW)
        self._telemetry = telemetry
        self._published_s: dict[int, float] = {}

    def count(self, events: Sequence[Event], newest: StepRecord | None, now_s: float) -> None:
        """Count events that were told; ``newest`` is the job's newest complete step."""
        for event in events:
            if event.kind == "step":
                self._count_step(event, newest, now_s)
            elif event.kind == "policy":
                self._published_s[event.data["version"]] = now_s
                while len(self._published_s) > _MAX_SPREADING:
                    self._published_s.pop(next(iter(self._published_s)))

    def _count_step(self, event: Event, newest: StepRecord | None, now_s: float) -> None:
        step, skew, version = (event.data[key] for key in ("step", "skew", "policy_version"))
        labels = {"step": str(step)}
        if newest is not None and newest.step == step:
            labels["rank"] = str(int(np.argmax(newest.slowdown)))
        self.skew.observe(skew, Exemplar(labels=labels, value=skew, at_s=now_s))
        # A step under a newer policy tells of those before it, too: they were passed over.
        for older in [known for known in self._published_s if known <= version]:
            self._telemetry.propagation.observe(max(0.0, now_s - self._published_s.pop(older)))
