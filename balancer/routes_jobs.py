"""Views of jobs for pages, scripts and people, and what operators may change."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from libra.balancer.drafts import DraftError, PolicyDraft, RollbackRequest, check_author
from libra.balancer.history import UnknownPolicyError
from libra.balancer.problems import ProblemError
from libra.balancer.requests import (
    LiveJobDep,
    ServiceDep,
    json_response,
    json_schema,
    read_json,
)
from libra.balancer.state import Mode

router = APIRouter(prefix="/api/v1", tags=["jobs"])

Last = Annotated[int, Query(ge=1, le=2000, description="newest complete steps to show")]


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


@router.get("/jobs/{job}/diagnosis", summary="Say what the job's steps lose their time to.")
async def get_diagnosis(live: LiveJobDep) -> Response:
    return json_response(live.job.diagnosis())


@router.get("/jobs/{job}/pools", summary="Show what each pool size would do, and which to use.")
async def get_pools(live: LiveJobDep) -> Response:
    return json_response(live.job.pools())


@router.get("/jobs/{job}/whatif", summary="Show the share of attention each pool size saves.")
async def get_whatif(live: LiveJobDep) -> Response:
    return json_response(live.job.whatif())


@router.get(
    "/jobs/{job}/policies",
    summary="List policies, their effects, and what was decided.",
)
async def get_policies(live: LiveJobDep) -> Response:
    return json_response(live.job.policies())


@router.put(
    "/jobs/{job}/mode",
    summary="Choose whether Libra only watches, adapts, or keeps the policy as it is.",
    openapi_extra=json_schema("ModeChange"),
)
async def put_mode(live: LiveJobDep, service: ServiceDep, request: Request) -> Response:
    change = await read_json(request, service, ModeChange)
    await service.set_mode(live, change.mode)
    return json_response(change)


@router.post(
    "/jobs/{job}/publish",
    summary="Put settings in force by hand; answered with the policy once it is on disk.",
    openapi_extra=json_schema("PolicyDraft"),
)
async def post_publish(live: LiveJobDep, service: ServiceDep, request: Request) -> Response:
    draft = await read_json(request, service, PolicyDraft)
    try:
        policy = draft.policy(live.job.policy, live.job.world_size)
    except DraftError as error:
        raise ProblemError(422, str(error), field=error.field) from error
    return json_response(await service.publish(live, policy, author=draft.author))


@router.post(
    "/jobs/{job}/rollback",
    summary="Bring back an earlier policy; answered with the new version once it is on disk.",
    openapi_extra=json_schema("RollbackRequest"),
)
async def post_rollback(live: LiveJobDep, service: ServiceDep, request: Request) -> Response:
    wanted = await read_json(request, service, RollbackRequest)
    try:
        check_author(wanted.author)
        row = await service.roll_back(live, wanted)
    except DraftError as error:
        raise ProblemError(422, str(error), field=error.field) from error
    except UnknownPolicyError as error:
        raise ProblemError(422, str(error), field="$.to_version") from error
    return json_response(row)
