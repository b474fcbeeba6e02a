"""What the service counts of itself as it works, for the metrics to read."""

from collections import Counter

from libra.balancer.histogram import Histogram

# Of seconds from a policy's publication until every rank has run a step under it.
_PROPAGATION = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Telemetry:
    """Histograms and counts that belong to no job.

    Attributes:
        ingest_duration: seconds from a request's whole body to its answer.
        ingest_bytes: of bodies that were taken in.
        loop_lag: seconds by which the event loop was late.
        propagation: seconds from publishing a policy until all ranks ran it.
        refused: requests that were not allowed, by reason.
    """

    def __init__(self) -> None:
        self.ingest_duration = Histogram()
        self.ingest_bytes = 0
        self.loop_lag = Histogram(_LAG)
        self.propagation = Histogram(_PROPAGATION)
        self.refused: Counter[str] = Counter()
