"""The samples of the balancer itself and of one job, in three levels of detail."""

import platform
from collections.abc import Sequence

import numpy as np

from libra.balancer.causes import CAUSES
from libra.balancer.job_figures import JobFigures, largest, pool_loads, spread
from libra.balancer.metric_names import KIND
from libra.balancer.metric_text import Lines
from libra.balancer.service import Service
from libra.balancer.taking import RESULTS
from libra.balancer.version import libra_revision, libra_version

STATES = ("active", "stale", "finished")
# Ranks by how slow they are. Which ones these are changes all the time: that is no label.
_SLOWEST = 5
_FIGURES = (
    ("libra_step", "step"),
    ("libra_step_duration_seconds", "step_seconds"),
    ("libra_step_skew_ratio", "skew"),
    ("libra_predicted_step_skew_ratio", "predicted_skew"),
    ("libra_home_step_skew_ratio", "home_skew"),
    ("libra_policy_version", "policy_version"),
    ("libra_agent_dropped", "dropped"),
    ("libra_agent_set_aside", "set_aside"),
    ("libra_incomplete_steps", "incomplete_steps"),
    ("libra_policy_updates", "policy_version"),
    ("libra_policy_rollbacks", "rollbacks"),
    ("libra_wasted_rank_seconds", "wasted_seconds"),
)
_RESULTS = (
    ("accepted", "reports"),
    ("duplicate", "duplicates"),
    ("late", "late"),
    ("rejected", "rejected"),
)


def balancer_lines(service: Service, states: Sequence[str]) -> Lines:
    """Return what is shown of the balancer; ``states`` are those of its jobs."""
    lines, store, telemetry = Lines(), service.store, service.telemetry
    lines.add("libra_build", 1, libra_version(), libra_revision(), platform.python_version())
    lines.add("libra_leader", float(service.role == "active"))
    for state in STATES:
        lines.add("libra_jobs", states.count(state), state)
    for result in {**dict.fromkeys(RESULTS), **service.results}:
        lines.add("libra_reports", service.results[result], result)
    for reason, number in sorted(telemetry.refused.items()):
        lines.add("libra_auth_refused", number, reason)
    lines.add("libra_policy_polls", sum(live.polls for live in service.jobs.values()))
    streams = [service.jobs_stream, *(live.stream for live in service.jobs.values())]
    lines.add("libra_sse_clients", sum(stream.clients for stream in streams))
    lines.add("libra_sse_resyncs", sum(stream.resyncs for stream in streams))
    lines.add("libra_sse_stalled", sum(stream.stalled for stream in streams))
    lines.add("libra_ingest_queue_length", store.waiting)
    lines.add("libra_ingest_queue_capacity", store.capacity)
    lines.add("libra_ingest_bytes", telemetry.ingest_bytes)
    lines.add("libra_store_size_bytes", store.size_bytes)
    lines.add("libra_store_errors", store.errors)
    lines.add("libra_store_set_aside", service.set_aside)
    lines.add_histogram("libra_store_commit_duration_seconds", store.commits)
    lines.add_histogram("libra_ingest_duration_seconds", telemetry.ingest_duration)
    lines.add_histogram("libra_event_loop_lag_seconds", telemetry.loop_lag)
    lines.add_histogram("libra_policy_propagation_seconds", telemetry.propagation)
    return lines


def job_lines(job: JobFigures, now_s: float) -> Lines:
    """Return what every level shows of a job."""
    lines, view = Lines(job.name), job.view
    fields = ("mode", "attempt", "world_size", "policy_checksum")
    lines.add("libra_job", 1, *(str(view[field]) for field in fields))
    age_s = view["last_report_age_seconds"]
    if age_s is not None:
        lines.add("libra_job_last_report_timestamp_seconds", now_s - age_s)
    for name, field in _FIGURES:
        lines.add(name, view[field])
    for result, field in _RESULTS:
        lines.add("libra_job_reports", view[field], result)
    reporting = view["ranks_reporting"]
    lines.add("libra_ranks", reporting, "reporting")
    lines.add("libra_ranks", max(0, view["world_size"] - reporting), "silent")
    lines.add("libra_policy_lag_ranks", job.lagging_ranks)
    if job.clock_offsets_s:
        for stat, offset_s in zip(("min", "max"), job.clock_offsets_s, strict=True):
            lines.add("libra_node_clock_offset_seconds", offset_s, stat)
    lines.add_histogram("libra_step_skew_distribution_ratio", job.tally.skew)
    _add_diagnosis(lines, job)
    _add_step(lines, job)
    _add_model(lines, job)
    return lines


def pool_lines(job: JobFigures) -> Lines:
    """Return what levels pool and rank add: a pool's load."""
    lines = Lines(job.name)
    if job.newest is not None and job.pools is not None:
        for pool, load in enumerate(pool_loads(job.newest.kernel_seconds, job.pools)):
            lines.add("libra_pool_load_ratio", load, str(pool))
    return lines


def rank_lines(job: JobFigures) -> Lines:
    """Return what level rank adds: the figures of every rank."""
    lines = Lines(job.name)
    if job.newest is None or job.speeds is None:
        return lines
    for name, values in (
        ("libra_rank_kernel_seconds", job.newest.kernel_seconds),
        ("libra_rank_slowdown_ratio", job.newest.slowdown),
        ("libra_rank_speed_ratio", job.speeds),
    ):
        for rank, value in enumerate(np.asarray(values).tolist()):
            lines.add(name, value, str(rank))
    return lines


def _add_diagnosis(lines: Lines, job: JobFigures) -> None:
    found = job.found
    if found is None:
        return
    for cause in CAUSES:
        lines.add("libra_job_cause", float(cause == found.cause), cause)
        if cause != "even":
            lines.add("libra_lost_seconds", found.lost_seconds.get(cause, 0.0), cause)
    lines.add("libra_recoverable_ratio", found.recoverable_share)
    lines.add("libra_recovered_ratio", found.recovered_share)


def _add_step(lines: Lines, job: JobFigures) -> None:
    if job.newest is None:
        return
    for stat, value in spread(job.newest.kernel_seconds).items():
        lines.add("libra_rank_cost_seconds", value, stat)
    for at, slowdown in enumerate(largest(job.newest.slowdown, _SLOWEST)):
        lines.add("libra_slowest_rank_slowdown_ratio", slowdown, str(at + 1))


def _add_model(lines: Lines, job: JobFigures) -> None:
    features = job.model["features"]
    for kind in job.model["kinds"]:
        labels = [str(kind["kind"][field]) for field in KIND]
        lines.add("libra_cost_model_samples", kind["count"], *labels)
        lines.add("libra_cost_model_error_ratio", kind["error"], *labels)
        for term, seconds in zip(features, kind["coefficients"] or (), strict=False):
            lines.add("libra_cost_model_coefficient_seconds", seconds, *labels, term)
