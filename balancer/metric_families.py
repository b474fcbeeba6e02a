"""Prometheus families of samples: the project's prefix, labels, and nothing that is unknown."""

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

# Label values, and the figure; None where it is not known.
Samples = Iterable[tuple[tuple[str, ...], float | None]]


def gauge(name: str, text: str, samples: Samples, labels: tuple[str, ...] = ()) -> Metric:
    """Return a gauge; a sample without a value is left out."""
    family = GaugeMetricFamily(f"libra_{name}", text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def counter(name: str, text: str, samples: Samples, labels: tuple[str, ...] = ()) -> Metric:
    """Return a counter; a sample without a value is left out."""
    family = CounterMetricFamily(f"libra_{name}", text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family
