"""What stays open: the policy by long poll for agents, events by stream for pages."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from libra.balancer.policy import Policy, encode_policy
from libra.balancer.problems import RETRY_AFTER_S, ProblemError
from libra.balancer.requests import LiveJobDep, ServiceDep

router = APIRouter(prefix="/api/v1", tags=["live"])

_NO_STORE = {"Cache-Control": "no-store"}


@router.get(
    "/jobs/{job}/policy",
    summary="Return the policy; with If-None-Match and wait, once it is another one.",
    responses={304: {"description": "The policy is still the one in If-None-Match."}},
)
async def get_policy(
    live: LiveJobDep,
    service: ServiceDep,
    wait: Annotated[float, Query(ge=0, description="seconds, cut at the server's limit")] = 0.0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    wait_s = 0.0 if service.closing else min(wait, service.settings.poll_limit_s)

    def known(policy: Policy) -> bool:
        return if_none_match == _etag(policy)

    policy = await live.wait(known, wait_s)
    if policy is None:
        return Response(status_code=304, headers=_NO_STORE | {"ETag": _etag(live.policy)})
    headers = _NO_STORE | {"ETag": _etag(policy)}
    return Response(encode_policy(policy), media_type="application/json", headers=headers)


@router.get(
    "/jobs/{job}/events",
    summary="Follow the job: events step, model, policy, effect, mode, ranks, resync.",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def get_events(
    live: LiveJobDep,
    service: ServiceDep,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    if (
        sum(other.stream.clients for other in service.jobs.values())
        >= service.settings.stream_limit
    ):
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        raise ProblemError(503, "too many event streams are open", headers=headers)
    return StreamingResponse(
        live.stream.follow(_number(last_event_id)),
        media_type="text/event-stream",
        # nginx would hold events back until its buffer is full.
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _etag(policy: Policy) -> str:
    return f'"{policy.checksum}"'


def _number(last_event_id: str | None) -> int | None:
    """Return the event's number; a foreign one falls out of any ring and makes a resync."""
    if not last_event_id:
        return None
    number = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20
    return int(last_event_id) if number else -1
