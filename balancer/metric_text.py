"""Samples in the text formats of Prometheus, ten times as fast as through its client library.

What is written is what ``prometheus_client`` writes of the same samples, to the byte.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from libra.balancer.histogram import Exemplar, Histogram
from libra.balancer.metric_names import METRICS, Named

_number: Callable[[float], str] = floatToGoString


class Lines:
    """Lines of samples, by metric; ``first`` are label values that all of them begin with.

    Attributes:
        plain: lines as the older format has them.
        open: where OpenMetrics has other ones, those.
        series: how many samples there are.
    """

    def __init__(self, *first: str) -> None:
        self.plain: defaultdict[str, list[str]] = defaultdict(list)
        self.open: defaultdict[str, list[str]] = defaultdict(list)
        self.series = 0
        self._first = tuple(map(escape, first))

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a sample of a gauge, counter or info; one without a value is left out."""
        if value is not None:
            self._add(name, "", value, labels)

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add a histogram's buckets, with their examples in OpenMetrics, its count and sum."""
        begin = len(self.plain[name])
        bounds = [_number(bound) for bound in histogram.bounds] + ["+Inf"]
        counts = list(accumulate(histogram.counts))
        for bound, count in zip(bounds, counts, strict=True):
            self._add(name, "_bucket", count, labels, bound)
        self._add(name, "_count", counts[-1], labels)
        self._add(name, "_sum", histogram.total, labels)
        lines = self.plain[name][begin:]
        for at, exemplar in enumerate(histogram.exemplars):
            if exemplar is not None:
                lines[at] = lines[at][:-1] + _exemplar(exemplar)
        self.open[name] += lines

    def _add(
        self, name: str, suffix: str, value: float, labels: Sequence[str], bound: str | None = None
    ) -> None:
        values = [*self._first, *map(escape, labels)]
        if bound is not None:
            values.append(bound)
        head = _template(name, suffix).format(*values)
        self.plain[name].append(f"{head} {_number(value)}\n")
        self.series += 1


def write(blocks: Iterable[Lines], *, level: str, openmetrics: bool) -> str:
    """Return the page: every metric of the level once, with the lines of all blocks."""
    blocks = list(blocks)
    pieces = []
    for metric in METRICS.values():
        if metric.is_at(level):
            pieces += [_open_head(metric) if openmetrics else _head(metric)]
            for block in blocks:
                lines = block.plain.get(metric.name, [])
                pieces += block.open.get(metric.name, lines) if openmetrics else lines
    return "".join([*pieces, "# EOF\n"] if openmetrics else pieces)


def escape(value: str) -> str:
    """Return a label's value as it stands between quotes."""
    if '"' in value or "\\" in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


@cache
def _template(name: str, suffix: str) -> str:
    """Return a sample up to its value, with a place for each label value."""
    metric = METRICS[name]
    labels = [*metric.labels, "le"] if suffix == "_bucket" else [*metric.labels]
    places = [f'{label}="{{{labels.index(label)}}}"' for label in sorted(labels)]
    sample = metric.shown + suffix
    return f"{sample}{{{{{','.join(places)}}}}}" if places else sample


def _head(metric: Named) -> str:
    kind = "gauge" if metric.type == "info" else metric.type
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.shown} {text}\n# TYPE {metric.shown} {kind}\n"


def _open_head(metric: Named) -> str:
    return f"# HELP {metric.name} {escape(metric.help)}\n# TYPE {metric.name} {metric.type}\n"


def _exemplar(exemplar: Exemplar) -> str:
    labels = ",".join(f'{name}="{escape(text)}"' for name, text in sorted(exemplar.labels.items()))
    return f" # {{{labels}}} {_number(exemplar.value)} {exemplar.at_s}\n"
