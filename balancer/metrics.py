"""What Prometheus sees: live state, read at scrape time, so nothing can go stale.

Series are per job and never per rank: a rank label on thousands of ranks would be more than
Prometheus should take. A job that ended has no series.
"""

import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import InfoMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from libra.balancer.causes import CAUSES
from libra.balancer.metric_families import counter, gauge
from libra.balancer.service import RESULTS, LiveJob, Service
from libra.balancer.version import libra_version

_STATES = ("active", "stale", "finished")
_KIND = ("device", "backend", "dtype", "head_dim", "group_heads", "direction")


class _Shown(NamedTuple):
    live: LiveJob
    summary: dict[str, Any]

    @property
    def name(self) -> str:
        return self.live.job.name


class ServiceCollector(Collector):
    """Read a service's state whenever it is scraped; run it on the service's own thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        # Without this, registering would collect once to learn the names.
        return ()

    def collect(self) -> Iterator[Metric]:
        start = time.perf_counter()
        now_s = self._service.now_s()
        jobs = [_Shown(live, live.job.summary(now_s)) for live in self._service.jobs.values()]
        shown = [job for job in jobs if job.summary["state"] != "finished"]
        yield from _balancer(self._service, jobs)
        yield from _store(self._service)
        yield from _jobs(shown, now_s)
        yield from _counters(shown)
        yield from _diagnosis(shown)
        yield from _ranks(shown)
        yield from _cost_model(shown)
        yield gauge(
            "metrics_collect_duration_seconds",
            "Seconds that collecting these metrics took.",
            [((), time.perf_counter() - start)],
        )


def _balancer(service: Service, jobs: list[_Shown]) -> Iterator[Metric]:
    build = InfoMetricFamily("libra_build", "The balancer's version.")
    build.add_metric([], {"version": libra_version(), "python": platform.python_version()})
    yield build
    states = [job.summary["state"] for job in jobs]
    yield gauge(
        "jobs", "Jobs by state.", [((state,), states.count(state)) for state in _STATES], ("state",)
    )
    yield counter(
        "reports",
        "Reports by what became of them.",
        [
            ((result,), service.results[result])
            for result in {**dict.fromkeys(RESULTS), **service.results}
        ],
        ("result",),
    )
    polls = sum(job.live.polls for job in jobs)
    yield gauge("policy_polls", "Agents that wait for a policy.", [((), polls)])
    streams = [job.live.stream for job in jobs]
    clients = sum(stream.clients for stream in streams)
    yield gauge("sse_clients", "Open event streams.", [((), clients)])
    resyncs = sum(stream.resyncs for stream in streams)
    yield counter("sse_resyncs", "Event streams that fell out of the ring.", [((), resyncs)])


def _store(service: Service) -> Iterator[Metric]:
    store = service.store
    yield gauge("ingest_queue_length", "Writes that wait for the disk.", [((), store.waiting)])
    yield gauge("ingest_queue_capacity", "Writes that may wait.", [((), store.capacity)])
    yield gauge("store_size_bytes", "Size of the store's files.", [((), store.size_bytes)])
    yield counter("store_errors", "Transactions that failed.", [((), store.errors)])
    yield SummaryMetricFamily(
        "libra_store_commit_duration_seconds",
        "Seconds a transaction takes, its fsync included.",
        count_value=store.commits,
        sum_value=store.commit_seconds,
    )


def _jobs(jobs: list[_Shown], now_s: float) -> Iterator[Metric]:
    info = InfoMetricFamily("libra_job", "What a job is; join on job_id.", labels=("job_id",))
    for job in jobs:
        fields = ("mode", "attempt", "world_size", "policy_checksum")
        info.add_metric([job.name], {field: str(job.summary[field]) for field in fields})
    yield info
    yield _per_job(
        "job_last_report_timestamp_seconds",
        "Unix time of the job's last report.",
        [
            (job, now_s - age_s)
            for job in jobs
            if (age_s := job.summary["last_report_age_seconds"]) is not None
        ],
    )
    for field, name, text in (
        ("step", "step", "Newest complete step."),
        ("step_seconds", "step_duration_seconds", "Duration of the newest complete step."),
        ("skew", "step_skew_ratio", "Kernel seconds of the slowest rank over the mean."),
        ("predicted_skew", "predicted_step_skew_ratio", "The same by the cost model."),
        ("home_skew", "home_step_skew_ratio", "The same, had plain Ulysses run the step."),
        ("policy_version", "policy_version", "Version of the job's policy."),
    ):
        yield _per_job(name, text, [(job, job.summary[field]) for job in jobs])
    yield gauge(
        "ranks",
        "Ranks by whether they report.",
        [
            ((job.name, state), number)
            for job in jobs
            for state, number in _rank_states(job.summary).items()
        ],
        ("job_id", "state"),
    )


def _rank_states(summary: dict[str, Any]) -> dict[str, int]:
    reporting = summary["ranks_reporting"]
    return {"reporting": reporting, "silent": max(0, summary["world_size"] - reporting)}


def _counters(jobs: list[_Shown]) -> Iterator[Metric]:
    yield counter(
        "job_reports",
        "Reports of the job, by what became of them.",
        [
            ((job.name, result), job.summary[field])
            for job in jobs
            for result, field in (
                ("accepted", "reports"),
                ("duplicate", "duplicates"),
                ("late", "late"),
                ("rejected", "rejected"),
            )
        ],
        ("job_id", "result"),
    )
    for field, name, text in (
        ("dropped", "agent_dropped", "Steps and observations that the job's agents have lost."),
        (
            "set_aside",
            "agent_set_aside",
            "Kernel calls kept out of the fits: warm-ups and hiccups.",
        ),
        ("incomplete_steps", "incomplete_steps", "Steps that were given up: ranks were missing."),
        ("policy_version", "policy_updates", "Policies published."),
        ("rollbacks", "policy_rollbacks", "Policies that measured worse and were rolled back."),
        ("wasted_seconds", "wasted_rank_seconds", "Rank seconds spent waiting for the slowest."),
    ):
        samples = [((job.name,), job.summary[field]) for job in jobs]
        yield counter(name, text, samples, ("job_id",))


def _diagnosis(jobs: list[_Shown]) -> Iterator[Metric]:
    yield gauge(
        "job_cause",
        "What to act on first: 1 for one cause, 0 for the others.",
        [
            ((job.name, cause), float(cause == job.summary["cause"]))
            for job in jobs
            for cause in CAUSES
        ],
        ("job_id", "cause"),
    )
    yield gauge(
        "lost_seconds",
        "Seconds of a step that each cause costs; 0 where it was not found.",
        [
            ((job.name, cause), job.summary["lost_seconds"].get(cause, 0.0))
            for job in jobs
            for cause in CAUSES
            if cause != "even"
        ],
        ("job_id", "cause"),
    )
    for field, name, text in (
        ("recoverable_share", "recoverable_ratio", "Share of a step that Libra could still save."),
        ("recovered_share", "recovered_ratio", "Share of plain Ulysses' step that Libra saves."),
    ):
        yield _per_job(name, text, [(job, job.summary[field]) for job in jobs])


def _ranks(jobs: list[_Shown]) -> Iterator[Metric]:
    samples = []
    for job in jobs:
        ranks = job.live.job.ranks(1)["ranks"]
        seconds = sorted(r["kernel_seconds"] for r in ranks if r["kernel_seconds"] is not None)
        for stat, value in _spread(seconds).items():
            samples.append(((job.name, stat), value))
    text = "Kernel seconds of the job's ranks in the newest complete step."
    yield gauge("rank_cost_seconds", text, samples, ("job_id", "stat"))


def _spread(ordered: list[float]) -> dict[str, float]:
    if not ordered:
        return {}
    return {
        "min": ordered[0],
        "mean": statistics.fmean(ordered),
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }


def _cost_model(jobs: list[_Shown]) -> Iterator[Metric]:
    coefficients, errors, counts = [], [], []
    for job in jobs:
        model = job.live.job.model()
        for kind in model["kinds"]:
            labels = (job.name, *(str(kind["kind"][field]) for field in _KIND))
            counts.append((labels, kind["count"]))
            errors.append((labels, kind["error"]))
            for term, seconds in zip(model["features"], kind["coefficients"] or (), strict=False):
                coefficients.append(((*labels, term), seconds))
    labels = ("job_id", *_KIND)
    text = "Fitted seconds per unit of a feature."
    yield gauge("cost_model_coefficient_seconds", text, coefficients, (*labels, "term"))
    text = "Cost-weighted relative error of predictions made before learning."
    yield gauge("cost_model_error_ratio", text, errors, labels)
    text = "Kernel calls that the fit remembers; forgetting makes it fall."
    yield gauge("cost_model_samples", text, counts, labels)


def _per_job(name: str, text: str, values: Iterable[tuple[_Shown, float | None]]) -> Metric:
    return gauge(name, text, [((job.name,), value) for job, value in values], ("job_id",))
