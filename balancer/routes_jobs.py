"""Views of jobs for pages, scripts and people, and what operators may change."""

import asyncio
import logging
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from libra.balancer.drafts import DraftError, PolicyDraft, RollbackRequest, check_author
from libra.balancer.history import UnknownPolicyError
from libra.balancer.pool_views import pools_view, whatif_view
from libra.balancer.problems import ProblemError
from libra.balancer.ranks_body import ranks_body
from libra.balancer.requests import (
    LiveJobDep,
    ServiceDep,
    author_of,
    json_response,
    json_schema,
    read_json,
)
from libra.balancer.state import Mode

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/api/v1", tags=["jobs"])

Last = Annotated[int, Query(ge=1, le=2000, description="newest complete steps to show")]


class ModeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a mode change, and its answer."""

    mode: Mode


@router.get("/jobs", summary="List all jobs.")
async def list_jobs(service: ServiceDep) -> Response:
    views = [msgspec.Raw(msgspec.json.encode(view)) async for view in service.summaries()]
    return json_response({"jobs": views})


@router.get("/jobs/{job}", summary="Sum up one job.")
async def get_job(live: LiveJobDep, service: ServiceDep) -> Response:
    await service.insight.renew(live)
    return json_response(live.job.summary_as_known(service.now_s()))


@router.delete(
    "/jobs/{job}",
    status_code=204,
    summary="Delete a job, its policies and all that is stored of it.",
)
async def delete_job(job: Annotated[str, Path()], service: ServiceDep) -> Response:
    if not await service.forget(job):
        raise ProblemError(404, "no report of this job has arrived", field="job")
    logger.warning("Job %s was deleted on request.", job)
    return Response(status_code=204)


@router.get("/jobs/{job}/skew", summary="Show skew by step: measured, predicted, and at home.")
async def get_skew(live: LiveJobDep, last: Last = 600) -> Response:
    return json_response(live.job.skew(last))


@router.get("/jobs/{job}/ranks", summary="Show the ranks and their slowdown by step.")
async def get_ranks(live: LiveJobDep, last: Last = 600) -> Response:
    body = await asyncio.to_thread(ranks_body, *live.job.rank_evidence(last))
    return Response(body, media_type="application/json")


@router.get("/jobs/{job}/model", summary="Show the cost model and the points it was fitted to.")
async def get_model(live: LiveJobDep) -> Response:
    return json_response(live.job.model())


@router.get("/jobs/{job}/exchange", summary="Show what the pool exchange sends and waits for.")
async def get_exchange(live: LiveJobDep, last: Last = 600) -> Response:
    return json_response(live.job.exchange(last))


@router.get("/jobs/{job}/diagnosis", summary="Say what the job's steps lose their time to.")
async def get_diagnosis(live: LiveJobDep, service: ServiceDep) -> Response:
    await service.insight.diagnose(live)
    return json_response(live.job.diagnosis_as_known())


@router.get("/jobs/{job}/pools", summary="Show what each pool size would do, and which to use.")
async def get_pools(live: LiveJobDep, service: ServiceDep) -> Response:
    await service.insight.advise(live)
    return json_response(pools_view(live.job.advised.advice))


@router.get("/jobs/{job}/whatif", summary="Show the share of attention each pool size saves.")
async def get_whatif(live: LiveJobDep, service: ServiceDep) -> Response:
    await service.insight.advise(live)
    return json_response(whatif_view(live.job.advised.advice))


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
    author = author_of(request, "operator")
    logger.info("Job %s is in mode %s, by %s.", live.job.name, change.mode, author)
    return json_response(change)


@router.post(
    "/jobs/{job}/publish",
    summary="Put settings in force by hand; answered with the policy once it is on disk.",
    openapi_extra=json_schema("PolicyDraft"),
)
async def post_publish(live: LiveJobDep, service: ServiceDep, request: Request) -> Response:
    draft = await read_json(request, service, PolicyDraft)
    draft = msgspec.structs.replace(draft, author=author_of(request, draft.author))
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
    wanted = msgspec.structs.replace(wanted, author=author_of(request, wanted.author))
    try:
        check_author(wanted.author)
        row = await service.roll_back(live, wanted)
    except DraftError as error:
        raise ProblemError(422, str(error), field=error.field) from error
    except UnknownPolicyError as error:
        raise ProblemError(422, str(error), field="$.to_version") from error
    return json_response(row)
