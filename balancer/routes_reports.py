"""The one route that training jobs write to: reports."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Request, Response

from libra.balancer.problems import ProblemError
from libra.balancer.requests import ServiceDep, content_type, read_body
from libra.balancer.service import Service
from libra.balancer.wire import Report, ReportError, decode_report, encode_report

router = APIRouter(prefix="/api/v1", tags=["reports"])

MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
JSON = "application/json"
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
    responses={
        202: {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Accepted"}}}},
        429: {"description": "Too many reports wait for the disk: try after Retry-After."},
    },
    openapi_extra={
        "requestBody": {"required": True, "content": {MSGPACK[0]: _SCHEMA, JSON: _SCHEMA}}
    },
)
async def post_report(
    job: Annotated[str, Path()], service: ServiceDep, request: Request
) -> Response:
    try:
        report, body = await _read(job, service, request)
    except ReportError as error:
        service.refuse(job, error.reason)
        raise _problem(error) from error
    except ProblemError as problem:
        service.refuse(job, _STATUS_RESULTS[problem.status])
        raise
    try:
        fresh = await service.report(report, body)
    except ReportError as error:
        raise _problem(error) from error
    answer = msgspec.json.encode(Accepted(accepted=True, duplicate=not fresh))
    return Response(answer, status_code=202, media_type=JSON)


async def _read(job: str, service: Service, request: Request) -> tuple[Report, bytes]:
    """Return the request's checked report, and its msgpack."""
    kind = content_type(request)
    if kind != JSON and kind not in MSGPACK:
        raise ProblemError(415, f"content type {kind!r}: must be {MSGPACK[0]} or {JSON}")
    settings = service.settings
    body = await read_body(request, settings.body_limit_bytes, settings.body_timeout_s)
    report = decode_report(body, as_json=kind == JSON)
    if report.job != job:
        detail = f"a report of job {report.job!r} came to job {job!r}"
        raise ProblemError(409, detail, field="$.job")
    return report, encode_report(report) if kind == JSON else body


def _problem(error: ReportError) -> ProblemError:
    status = 400 if error.reason == "malformed" else 422
    return ProblemError(status, str(error), field=error.field)
