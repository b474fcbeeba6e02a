"""The one route that training jobs write to: reports."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Request, Response

from libra.balancer.problems import ProblemError
from libra.balancer.requests import ServiceDep, content_type, read_body
from libra.balancer.service import Service
from libra.balancer.store import StoreFullError
from libra.balancer.wire import ReportError, decode_report, encode_report

router = APIRouter(prefix="/api/v1", tags=["reports"])

MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
JSON = "application/json"
RESULTS = (
    *("accepted", "duplicate", "media_type", "too_large", "too_slow", "malformed", "invalid"),
    *("not_finite", "negative", "absurd", "inconsistent", "wrong_job", "queue_full"),
)
_STATUS_RESULTS = {408: "too_slow", 409: "wrong_job", 413: "too_large", 415: "media_type"}
_SCHEMA = {"schema": {"$ref": "#/components/schemas/Report"}}


class Accepted(msgspec.Struct, frozen=True):
    """The report is on disk; ``duplicate`` when it had been before."""

    accepted: bool
    duplicate: bool


@router.post(
    "/jobs/{job}/reports",
    status_code=202,
    summary="Take one rank's news; answered once it is on disk.",
    openapi_extra={
        "requestBody": {"required": True, "content": {MSGPACK[0]: _SCHEMA, JSON: _SCHEMA}}
    },
)
async def post_report(
    job: Annotated[str, Path()], service: ServiceDep, request: Request
) -> Response:
    try:
        fresh = await _take(job, service, request)
    except ReportError as error:
        _refuse(service, job, error.reason)
        status = 400 if error.reason == "malformed" else 422
        raise ProblemError(status, str(error), field=error.field) from error
    except ProblemError as problem:
        _refuse(service, job, _STATUS_RESULTS[problem.status])
        raise
    except StoreFullError:
        service.results["queue_full"] += 1
        raise
    service.results["accepted" if fresh else "duplicate"] += 1
    body = msgspec.json.encode(Accepted(accepted=True, duplicate=not fresh))
    return Response(body, status_code=202, media_type=JSON)


async def _take(job: str, service: Service, request: Request) -> bool:
    kind = content_type(request)
    if kind != JSON and kind not in MSGPACK:
        raise ProblemError(415, f"content type {kind!r}: must be {MSGPACK[0]} or {JSON}")
    settings = service.settings
    body = await read_body(request, settings.body_limit_bytes, settings.body_timeout_s)
    report = decode_report(body, as_json=kind == JSON)
    if report.job != job:
        raise ProblemError(
            409, f"a report of job {report.job!r} came to job {job!r}", field="$.job"
        )
    return await service.report(report, encode_report(report) if kind == JSON else body)


def _refuse(service: Service, job: str, result: str) -> None:
    service.results[result] += 1
    live = service.jobs.get(job)
    if live is not None:
        live.job.rejected += 1
