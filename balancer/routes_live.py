"""What stays open: the policy by long poll for agents, events by stream for pages."""

import math
import random
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from libra.balancer.broadcast import EventStream
from libra.balancer.event_response import EventResponse
from libra.balancer.history import UnknownPolicyError, body_of
from libra.balancer.problems import RETRY_AFTER_S, ProblemError
from libra.balancer.requests import LiveJobDep, ServiceDep, get_live_job, get_service
from libra.balancer.service import Service
from libra.balancer.shown_policy import ShownPolicy

router = APIRouter(prefix="/api/v1", tags=["live"])

_NO_STORE = {"Cache-Control": "no-store"}
# Polls that began together, as after a restart, end spread over this share of their wait.
_JITTER = 0.1
EventId = Annotated[
    int | None, Query(ge=-1, lt=2**63, description="answer at once, in JSON, with what came after")
]
LastEventId = Annotated[str | None, Header()]


async def get_policy(request: Request) -> Response:
    """Answer one of ten thousand waiting agents: nothing here that a poll does not need."""
    service = await get_service(request)
    live = await get_live_job(service, request.path_params["job"])
    headers = request.headers
    wait_s = _wait_s(request.query_params.get("wait", "0"), service)
    shown = await live.wait(headers.get("if-none-match"), wait_s)
    told = {"ETag": live.shown.etag} if shown is None else {"ETag": shown.etag}
    if service.settings.policy_expires_s:
        told["Libra-Policy-Expires"] = f"{service.settings.policy_expires_s:g}"
    if shown is None:
        return Response(status_code=304, headers=_NO_STORE | told)
    return Response(shown.body, media_type="application/json", headers=_NO_STORE | told)


# Prefixes are for FastAPI's own routes.
POLICY_PATH = "/api/v1/jobs/{job}/policy"
router.add_route(POLICY_PATH, get_policy, methods=["GET"], include_in_schema=False)


def _parameter(place: str, name: str, text: str, kind: str) -> dict[str, Any]:
    return {
        "in": place,
        "name": name,
        "required": place == "path",
        "description": text,
        "schema": {"type": kind},
    }


# FastAPI describes its own routes only. What they answer is told with all others' answers.
PATHS: dict[str, Any] = {
    POLICY_PATH: {
        "get": {
            "tags": ["live"],
            "summary": "Return the policy; with If-None-Match and wait, once it is another one.",
            "operationId": "get_policy",
            "parameters": [
                _parameter("path", "job", "the job's name", "string"),
                _parameter("query", "wait", "seconds, cut at the server's limit", "number"),
                _parameter("header", "If-None-Match", "ETag of the policy at hand", "string"),
            ],
        }
    }
}


@router.get(
    "/jobs/{job}/policies/{version}",
    summary="Return the body of one policy of the job's history.",
)
async def get_version(live: LiveJobDep, version: Annotated[int, Path(ge=0, le=2**53)]) -> Response:
    try:
        if version > live.policy.version:
            raise UnknownPolicyError(f"the newest is {live.policy.version}")
        shown = ShownPolicy(body_of(live.job.state.policies, version))
    except UnknownPolicyError as error:
        raise ProblemError(404, f"no policy {version}: {error}", field="path.version") from error
    headers = _NO_STORE | {"ETag": shown.etag}
    return Response(shown.body, media_type="application/json", headers=headers)


@router.get(
    "/jobs/{job}/events",
    summary="Follow the job: events step, model, policy, effect, mode, ranks, resync.",
    response_class=Response,
)
async def get_events(
    live: LiveJobDep,
    service: ServiceDep,
    after: EventId = None,
    last_event_id: LastEventId = None,
) -> Response:
    return _events(service, live.stream, after, last_event_id)


@router.get(
    "/events",
    summary="Follow all jobs: event jobs, once a second, with the summaries that changed.",
    response_class=Response,
)
async def get_all_events(
    service: ServiceDep,
    request: Request,
    after: EventId = None,
    last_event_id: LastEventId = None,
) -> Response:
    request.app.state.jobs_watch.begin()
    return _events(service, service.jobs_stream, after, last_event_id)


def _events(
    service: Service, stream: EventStream, after: int | None, last_event_id: str | None
) -> Response:
    if after is not None:
        return Response(stream.page(after), media_type="application/json", headers=_NO_STORE)
    streams = [service.jobs_stream, *(live.stream for live in service.jobs.values())]
    if sum(each.clients for each in streams) >= service.settings.stream_limit:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        raise ProblemError(503, "too many event streams are open", headers=headers)
    return EventResponse(stream, _number(last_event_id), stall_s=service.settings.stall_s)


def _wait_s(text: str, service: Service) -> float:
    """Return for how long to hold a poll: no longer than asked for, nor than the limit."""
    try:
        asked_s = float(text)
    except ValueError:
        asked_s = math.nan
    if not 0 <= asked_s < math.inf:
        raise ProblemError(422, f"wait={text[:32]!r}: must be seconds from 0", field="query.wait")
    if service.closing:
        return 0.0
    limit_s = service.settings.poll_limit_s
    return asked_s if asked_s <= 1 else min(asked_s, limit_s) * random.uniform(1 - _JITTER, 1)


def _number(last_event_id: str | None) -> int | None:
    """Return the event's number; a foreign one falls out of any ring and makes a resync."""
    if not last_event_id:
        return None
    number = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20
    return int(last_event_id) if number else -1
