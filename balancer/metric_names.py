"""Every metric that is exported: what it is called, what it is, and where it appears.

Both the page for Prometheus and its reference are made from this list, so neither can name what
the other does not know.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from libra.balancer.metrics_settings import LEVELS

Type = Literal["gauge", "counter", "histogram", "info"]
# ``job`` is what every level shows; ``pool`` adds pools, ``rank`` adds ranks too.
Level = Literal["job", "pool", "rank"]

# What tells kernels apart; their cost differs.
KIND = ("device", "backend", "dtype", "head_dim", "group_heads", "direction")


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """One metric.

    Attributes:
        name: without the suffix that its type gives it.
        unit: of its values; empty for plain counts and for 0 or 1.
        labels: of a job's metric, the first is ``job_id``.
        level: the coarsest that shows it.
    """

    name: str
    type: Type
    unit: str
    labels: tuple[str, ...]
    help: str
    level: Level = "job"

    @property
    def shown(self) -> str:
        """The name that queries use."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.type, "")

    def is_at(self, level: str) -> bool:
        return LEVELS.index(self.level) <= LEVELS.index(level)


def _named(
    type: Type, rows: str, labels: tuple[str, ...] = (), level: Level = "job"
) -> Iterator[Named]:
    """Read lines ``name [label,...] (unit) help``; ``labels`` come before those of the line."""
    for row in filter(None, map(str.strip, rows.splitlines())):
        head, _, rest = row.partition(" (")
        unit, _, text = rest.partition(") ")
        name, _, own = head.partition(" ")
        more = tuple(own.strip("[]").split(",")) if own else ()
        yield Named(
            name=f"libra_{name}",
            type=type,
            unit=unit,
            labels=labels + more,
            help=text,
            level=level,
        )


_BALANCER = (
    *_named("info", "build [version,revision,python] () The balancer's version."),
    *_named(
        "gauge",
        """
        leader () 1 on the balancer that is active, 0 on one that stands by.
        jobs [state] () Jobs by state; finished ones are in the store.
        policy_polls () Agents that wait for a policy.
        sse_clients () Open event streams.
        ingest_queue_length () Writes that wait for the disk.
        ingest_queue_capacity () Writes that may wait.
        store_size_bytes (bytes) Size of the store's files.
        metrics_collect_duration_seconds (seconds) Seconds that the last page took to make.
        """,
    ),
    *_named(
        "counter",
        """
        reports [result] () Reports by what became of them.
        ingest_bytes (bytes) Bytes of reports that were taken in.
        auth_refused [reason] () Requests that were not allowed, by reason.
        sse_resyncs () Event streams that fell out of the ring.
        sse_stalled () Event streams that were cut off since nobody read them.
        store_errors () Transactions that failed.
        store_set_aside () Damaged files, and jobs that could not be read, that were set aside.
        series_limited () Series that pages left out, as there were too many.
        """,
    ),
    *_named(
        "histogram",
        """
        ingest_duration_seconds (seconds) Seconds from a report's arrival to its answer.
        store_commit_duration_seconds (seconds) A transaction's seconds, its fsync included.
        event_loop_lag_seconds (seconds) Seconds by which the event loop was late.
        policy_propagation_seconds (seconds) From publishing a policy until all ranks ran it.
        """,
    ),
)
_JOB = (
    *_named(
        "info",
        "job [mode,attempt,world_size,policy_checksum] () What a job is; join on job_id.",
        ("job_id",),
    ),
    *_named(
        "gauge",
        """
        job_last_report_timestamp_seconds (Unix time) Unix time of the job's last report.
        step () Newest complete step.
        step_duration_seconds (seconds) Duration of the newest complete step.
        step_skew_ratio (ratio) Kernel seconds of the slowest rank over the mean.
        predicted_step_skew_ratio (ratio) The same by the cost model.
        home_step_skew_ratio (ratio) The same, had plain Ulysses run the step.
        slowest_rank_slowdown_ratio [position] (ratio) Kernel seconds of the slowest ranks over the mean; 1 is the slowest.
        rank_cost_seconds [stat] (seconds) Kernel seconds of the job's ranks in the newest complete step.
        ranks [state] () Ranks by whether they report.
        policy_version () Version of the job's policy.
        policy_lag_ranks (ranks) Ranks that have not reported a step under the policy or a newer one.
        node_clock_offset_seconds [stat] (seconds) By how much clocks of the job's nodes are behind the balancer's.
        job_cause [cause] () What to act on first: 1 for one cause, 0 for the others.
        lost_seconds [cause] (seconds) Seconds of a step that each cause costs; 0 where it was not found.
        recoverable_ratio (ratio) Share of a step that Libra could still save.
        recovered_ratio (ratio) Share of plain Ulysses' step that Libra saves.
        """,  # noqa: E501
        ("job_id",),
    ),
    *_named(
        "gauge",
        """
        cost_model_coefficient_seconds [term] (seconds per unit) Fitted seconds per unit of a feature.
        cost_model_error_ratio (ratio) Cost-weighted relative error of predictions made before learning.
        cost_model_samples () Kernel calls that the fit remembers; forgetting makes it fall.
        """,  # noqa: E501
        ("job_id", *KIND),
    ),
    *_named(
        "counter",
        """
        job_reports [result] () Reports of the job, by what became of them.
        agent_dropped () Steps and observations that the job's agents have lost.
        agent_set_aside () Kernel calls kept out of the fits: warm-ups and hiccups.
        incomplete_steps () Steps that were given up: ranks were missing.
        policy_updates () Policies published.
        policy_rollbacks () Policies that measured worse and were rolled back.
        wasted_rank_seconds (seconds) Rank seconds spent waiting for the slowest.
        """,
        ("job_id",),
    ),
    *_named(
        "histogram",
        "step_skew_distribution_ratio (ratio) Skew of complete steps since the job was loaded.",
        ("job_id",),
    ),
)
_FINER = (
    *_named(
        "gauge",
        "pool_load_ratio [pool] (ratio) Kernel seconds of a pool's ranks over the job's mean.",
        ("job_id",),
        "pool",
    ),
    *_named(
        "gauge",
        """
        rank_kernel_seconds [rank] (seconds) Kernel seconds in the newest complete step.
        rank_slowdown_ratio [rank] (ratio) Kernel seconds over the mean of believed ranks.
        rank_speed_ratio [rank] (ratio) Speed that plans count on; 1 is the job's typical rank.
        """,
        ("job_id",),
        "rank",
    ),
)

METRICS = {metric.name: metric for metric in (*_BALANCER, *_JOB, *_FINER)}
