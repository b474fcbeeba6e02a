"""One job at one moment: give it reports, and look at all that it shows."""

from collections.abc import Iterable, Sequence
from typing import Any

from libra.balancer.events import Event
from libra.balancer.job import Job
from libra.balancer.wire import Report

NOW_S = 1_700_000_000.0


def feed(job: Job, reports: Iterable[Report]) -> list[Event]:
    """Apply reports in this order; return what the job tells of them."""
    return [event for report in reports for event in job.apply(report, NOW_S)]


def views(job: Job) -> dict[str, Any]:
    """Return every view of a job, by name."""
    return {
        "summary": job.summary(NOW_S),
        "skew": job.skew(600),
        "ranks": job.ranks(600),
        "model": job.model(),
        "exchange": job.exchange(600),
        "policies": job.policies(),
        "diagnosis": job.diagnosis(),
        "pools": job.pools(),
    }


def kinds_of(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]
