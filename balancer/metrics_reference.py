"""The reference of metrics, ``docs/metrics.md``, from the list that the page is made from.

python -m libra.balancer.metrics_reference > docs/metrics.md
"""

import sys

from libra.balancer.metric_names import METRICS, Named
from libra.balancer.metrics_settings import LEVELS

_HEAD = """\
# Metrics

`GET /metrics` shows the live state of the moment, in Prometheus' text format or in OpenMetrics,
gzipped where that is accepted. It is made at most once a second. `--metrics-level` says how fine
it is: `job` (the default) has a fixed number of series for each job, however many ranks it has;
`pool` and `rank` add those of each pool and rank. Beyond `--metrics-max-series` a job's finest
series are left out, and counted in `libra_series_limited_total`. Jobs that ended have no series.

Histograms count from when the balancer started. In OpenMetrics the buckets of
`libra_step_skew_distribution_ratio` name a step and its slowest rank as exemplars.

This page is generated: `python -m libra.balancer.metrics_reference > docs/metrics.md`.
"""


def reference() -> str:
    """Return the whole page, in Markdown."""
    parts = [_HEAD]
    for level in LEVELS:
        parts.append(f"\n## Level `{level}`\n\n")
        parts.append("| name | type | unit | labels | what it is |\n|---|---|---|---|---|\n")
        parts += [_row(metric) for metric in METRICS.values() if metric.level == level]
    return "".join(parts)


def _row(metric: Named) -> str:
    labels = " ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.shown}` | {metric.type} | {metric.unit} | {labels} | {metric.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
