"""Views of jobs for pages, scripts and people, and what operators may change."""

import asyncio
import logging
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from libra.balancer.drafts import DraftError, PolicyDraft, RollbackRequest, check_author
from libra.balancer.history import UnknownPolicyError
from libra.balancer.load_view import loads_view
from libra.balancer.pool_views import pools_view, whatif_view
from libra.balancer.problems import ProblemError
from libra.balancer.rank_view import rank_view
from libra.balancer.ranks_body import ranks_body
from libra.balancer.requests import (
    LiveJobDep,
    ServiceDep,
    author_of,
    json_response,
    json_schema,
    read_json,
)
from libra.balancer.slowdown_body import affordable, slowdown_body
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


@router.get(
    "/jobs/{job}/slowdown",
    summary="Return every rank's slowdown by step in bytes, little-endian: LSD1, S, W, 0 as 32-bit "
    "integers, [S] steps as 64-bit floats, [S, W] thousandths as 16-bit integers.",
    response_class=Response,
)
async def get_slowdown(live: LiveJobDep, last: Last = 600) -> Response:
    log = live.job.state.log
    records = log.current(affordable(last, log.world_size))
    body = await asyncio.to_thread(slowdown_body, records, log.world_size)
    return Response(body, media_type="application/octet-stream")


@router.get("/jobs/{job}/ranks/{rank}", summary="Show one rank: its place, speed, and course.")
async def get_rank(
    live: LiveJobDep, rank: Annotated[int, Path(ge=0, lt=2**31)], last: Last = 600
) -> Response:
    try:
        view = await asyncio.to_thread(rank_view, *live.job.rank_evidence(last), rank)
    except LookupError as error:
        raise ProblemError(404, str(error), field="path.rank") from error
    return json_response(view)


@router.get("/jobs/{job}/loads", summary="Show the newest step's load on each pool.")
async def get_loads(live: LiveJobDep, service: ServiceDep) -> Response:
    return json_response(await service.insight.look(live, loads_view))


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
