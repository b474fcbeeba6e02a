"""The page is, byte for byte, what Prometheus' own client library writes of the same samples."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ClientExemplar
from prometheus_client.utils import floatToGoString

from libra.balancer.histogram import Exemplar, Histogram
from libra.balancer.metric_names import KIND, METRICS, Named
from libra.balancer.metric_text import Lines, write

GAUGE, COUNTER = "libra_cost_model_error_ratio", "libra_job_reports"
HISTOGRAM, INFO = "libra_step_skew_distribution_ratio", "libra_job"
BOUNDS = (0.001, 1.0, 250_000.0, 2e16)

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"', "\\", "\n", '\\"\n', "\\n", "{}", "{0}", "%s", "é✓"]
)
numbers = st.floats() | st.integers(0, 2**60).map(float) | st.sampled_from([1e6, 1234567.5, 5e-324])


class Families(Collector):
    """Families that are already made."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self.families


def client_page(samples: dict[str, Metric], *, open_format: bool) -> str:
    registry = CollectorRegistry()
    families = [samples.get(name) or empty(metric) for name, metric in METRICS.items()]
    registry.register(Families(families))
    encode = openmetrics.generate_latest if open_format else exposition.generate_latest
    return encode(registry).decode()


def empty(metric: Named) -> Metric:
    return Metric(metric.name, metric.help, metric.type)


def client_histogram(
    name: str, labels: Sequence[str], values: Sequence[str], seen: Histogram
) -> Metric:
    family = HistogramMetricFamily(name, METRICS[name].help, labels=labels)
    buckets, count = [], 0
    for at, bound in enumerate([*map(floatToGoString, seen.bounds), "+Inf"]):
        count += seen.counts[at]
        own = seen.exemplars[at]
        more = [ClientExemplar(dict(own.labels), own.value, own.at_s)] if own else []
        buckets.append((bound, float(count), *more))
    family.add_metric(values, buckets, sum_value=seen.total)
    return family


@given(
    job=texts,
    kinds=st.lists(st.tuples(*[texts] * len(KIND), numbers), max_size=4),
    results=st.lists(st.tuples(texts, numbers), max_size=3),
    observed=st.lists(st.tuples(st.floats(0, 1e300), texts | st.none()), max_size=6),
    open_format=st.booleans(),
)
def test_the_page_is_what_the_client_library_writes(
    job: str,
    kinds: list[tuple[str, ...]],
    results: list[tuple[str, float]],
    observed: list[tuple[float, str | None]],
    open_format: bool,
) -> None:
    """Quotes, newlines, any characters, NaN, infinities, exponents and exemplars included."""
    lines, balancer = Lines(job), Lines()
    gauge = GaugeMetricFamily(GAUGE, METRICS[GAUGE].help, labels=("job_id", *KIND))
    for *labels, value in kinds:
        lines.add(GAUGE, value, *labels)  # type: ignore[arg-type]
        gauge.add_metric([job, *labels], value)  # type: ignore[arg-type]
    counter = CounterMetricFamily(COUNTER, METRICS[COUNTER].help, labels=("job_id", "result"))
    for result, number in results:
        lines.add(COUNTER, number, result)
        counter.add_metric([job, result], number)
    info = InfoMetricFamily(INFO, METRICS[INFO].help, labels=("job_id",))
    lines.add(INFO, 1, "observe", job, "2", "x")
    named = METRICS[INFO].labels[1:]
    info.add_metric([job], dict(zip(named, ("observe", job, "2", "x"), strict=True)))
    histogram = Histogram(BOUNDS)
    for size, text in observed:
        own = Exemplar(labels={"step": text}, value=size, at_s=1.5e9) if text else None
        histogram.observe(size, own)
    lines.add_histogram(HISTOGRAM, histogram)
    families: dict[str, Metric] = {
        GAUGE: gauge,
        COUNTER: counter,
        INFO: info,
        HISTOGRAM: client_histogram(HISTOGRAM, ("job_id",), [job], histogram),
    }

    page = write([balancer, lines], level="rank", openmetrics=open_format)

    assert page == client_page(families, open_format=open_format)
    written = sum(not line.startswith("# ") for line in page.split("\n") if line)
    if "\n" not in job:
        assert balancer.series + lines.series == written


def test_a_value_that_is_not_known_has_no_line() -> None:
    """No sample claims a figure that there is not."""
    lines = Lines("job")
    lines.add("libra_step_skew_ratio", None)

    assert (lines.series, dict(lines.plain)) == (0, {})
