"""How the balancer itself is: for ``libra status``, for people, and for their scripts."""

import time
from collections import Counter

from fastapi import APIRouter, Request, Response

from libra.balancer.requests import ServiceDep, json_response
from libra.balancer.service import Service
from libra.balancer.version import libra_version

router = APIRouter(prefix="/api/v1", tags=["status"])

STATES = ("active", "stale", "finished")


@router.get("/status", summary="Sum up the balancer: version, readiness, role, jobs, store, queue.")
async def get_status(service: ServiceDep, request: Request) -> Response:
    state = request.app.state
    reason = service.not_ready()
    store = service.store
    view = {
        "version": libra_version(),
        "role": service.role,
        "ready": reason is None,
        "not_ready": reason,
        "time": service.now_s(),
        "uptime_seconds": time.monotonic() - state.started_s,
        "jobs": _jobs(service),
        "queue": {"waiting": len(service.queue), "capacity": service.queue.capacity},
        "store": {
            "label": store.label,
            "healthy": store.healthy,
            "waiting": store.waiting,
            "capacity": store.capacity,
            "size_bytes": store.size_bytes,
            "errors": store.errors,
        },
        "reports": dict(service.results),
        "open_streams": sum(live.stream.clients for live in service.jobs.values()),
        "waiting_polls": sum(live.polls for live in service.jobs.values()),
        "loop_lag_seconds": state.lag.longest_s,
    }
    return json_response(view)


def _jobs(service: Service) -> dict[str, int]:
    now_s = service.now_s()
    found = Counter(live.job.liveness(now_s) for live in service.jobs.values())
    return {state: found[state] for state in STATES}
