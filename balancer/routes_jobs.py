"""Views of jobs for pages, scripts and people, and a job's mode."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from libra.balancer.job import Mode
from libra.balancer.problems import ProblemError
from libra.balancer.requests import (
    LiveJobDep,
    ServiceDep,
    content_type,
    json_response,
    read_body,
)

router = APIRouter(prefix="/api/v1", tags=["jobs"])

Last = Annotated[int, Query(ge=1, le=2000, description="newest complete steps to show")]
_MODE_LIMIT_BYTES = 1024


class ModeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a mode change, and its answer."""

    mode: Mode


@router.get("/jobs", summary="List all jobs.")
async def list_jobs(service: ServiceDep) -> Response:
    now_s = service.now_s()
    return json_response({"jobs": [live.job.summary(now_s) for live in service.jobs.values()]})


@router.get("/jobs/{job}", summary="Sum up one job.")
async def get_job(live: LiveJobDep, service: ServiceDep) -> Response:
    return json_response(live.job.summary(service.now_s()))


@router.get("/jobs/{job}/skew", summary="Show skew by step: measured, predicted, and at home.")
async def get_skew(live: LiveJobDep, last: Last = 600) -> Response:
    return json_response(live.job.skew(last))


@router.get("/jobs/{job}/ranks", summary="Show the ranks and their slowdown by step.")
async def get_ranks(live: LiveJobDep, last: Last = 600) -> Response:
    return json_response(live.job.ranks(last))


@router.get("/jobs/{job}/model", summary="Show the cost model and the points it was fitted to.")
async def get_model(live: LiveJobDep) -> Response:
    return json_response(live.job.model())


@router.get("/jobs/{job}/exchange", summary="Show what the pool exchange sends and waits for.")
async def get_exchange(live: LiveJobDep, last: Last = 600) -> Response:
    return json_response(live.job.exchange(last))


@router.get("/jobs/{job}/policies", summary="List the job's policies.")
async def get_policies(live: LiveJobDep) -> Response:
    return json_response(live.job.policies())


@router.put(
    "/jobs/{job}/mode",
    summary="Choose whether Libra only watches, adapts, or keeps the policy as it is.",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/ModeChange"}}
            },
        }
    },
)
async def put_mode(live: LiveJobDep, service: ServiceDep, request: Request) -> Response:
    if content_type(request) != "application/json":
        raise ProblemError(415, "the content type must be application/json")
    body = await read_body(request, _MODE_LIMIT_BYTES, service.settings.body_timeout_s)
    try:
        change = msgspec.json.decode(body, type=ModeChange)
    except msgspec.ValidationError as error:
        raise ProblemError(422, str(error), field="$.mode") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProblemError(400, str(error), field="$") from error
    await service.set_mode(live, change.mode)
    return json_response(change)
