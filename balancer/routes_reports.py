"""What training jobs write to: reports of single ranks, and batches of a node's.

These are the hot routes: ``HotLane`` answers them by ``HANDLERS``, and FastAPI describes them.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request, Response

from libra.balancer.batch import Batch, BatchOutcome, Refused, batch_of_one, decode_batch
from libra.balancer.policy import HOME_POLICY
from libra.balancer.problems import ProblemError
from libra.balancer.service import Service
from libra.balancer.uploads import ENCODINGS, JSON, MSGPACK, RefusedUploadError, read_upload
from libra.balancer.wire import ReportError, decode_report

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_HOME_ETAG = f'"{HOME_POLICY.checksum}"'


class Accepted(msgspec.Struct, frozen=True):
    """The report is taken; ``duplicate`` when it had been before.

    ``policy`` is the ETag of the job's policy: who has another one fetches it.
    """

    accepted: bool
    duplicate: bool
    policy: str


class BatchAccepted(msgspec.Struct, frozen=True):
    """How many rows were taken, had been before, or are of a launch that was given up; those
    refused, and why. ``policy`` is the ETag of the job's policy.
    """

    accepted: int
    duplicates: int
    late: int
    refused: list[Refused]
    policy: str


async def _report(request: Request) -> Response:
    service, batch, num_bytes = await _read(request, _decode_report)
    outcome = await _take(service, batch, num_bytes)
    answer = Accepted(
        accepted=True, duplicate=outcome.duplicates > 0, policy=_policy_etag(service, batch.job)
    )
    return _answer(answer)


async def _batch(request: Request) -> Response:
    service, batch, num_bytes = await _read(request, decode_batch)
    outcome = await _take(service, batch, num_bytes)
    answer = BatchAccepted(
        accepted=outcome.accepted,
        duplicates=outcome.duplicates,
        late=outcome.late,
        refused=outcome.refused,
        policy=_policy_etag(service, batch.job),
    )
    return _answer(answer)


# By the route's path; ``HotLane`` calls them.
HANDLERS: dict[str, Handler] = {
    "/api/v1/jobs/{job}/reports": _report,
    "/api/v1/jobs/{job}/batches": _batch,
}


def _described(schema: str) -> dict[str, Any]:
    body = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {
        "requestBody": {"required": True, "content": {MSGPACK[0]: body, JSON: body}},
        "parameters": [
            {
                "name": "Content-Encoding",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "enum": list(ENCODINGS)},
            }
        ],
    }


router = APIRouter(prefix="/api/v1", tags=["reports"])


@router.post(
    "/jobs/{job}/reports",
    status_code=202,
    summary="Take one rank's news.",
    openapi_extra=_described("Report"),
)
async def post_report(job: Annotated[str, Path()]) -> None:
    """Answered once the report is checked and folded in; what it tells is on disk soon after."""


@router.post(
    "/jobs/{job}/batches",
    status_code=202,
    summary="Take the news of a node's ranks.",
    openapi_extra=_described("Batch"),
)
async def post_batch(job: Annotated[str, Path()]) -> None:
    """Rows that cannot be true are refused, and the others taken; 422 where all are refused."""


def _decode_report(body: bytes, *, as_json: bool) -> Batch:
    return batch_of_one(decode_report(body, as_json=as_json))


async def _read(request: Request, decode: Callable[..., Batch]) -> tuple[Service, Batch, int]:
    """Return the service and the request's batch with its size in bytes; refusals are counted."""
    service = request.app.state.service
    assert isinstance(service, Service)
    job, settings = request.path_params["job"], service.settings
    try:
        body, as_json = await read_upload(
            request, settings.body_limit_bytes, settings.body_timeout_s
        )
        batch = decode(body, as_json=as_json)
        if batch.job != job:
            detail = f"a report of job {batch.job!r} came to job {job!r}"
            raise RefusedUploadError(409, "wrong_job", detail, field="$.job")
    except ReportError as error:
        service.refuse(job, error.reason)
        raise _problem(error) from error
    except RefusedUploadError as refusal:
        service.refuse(job, refusal.reason)
        raise
    return service, batch, len(body)


async def _take(service: Service, batch: Batch, num_bytes: int) -> BatchOutcome:
    try:
        return await service.take(batch, num_bytes)
    except ReportError as error:
        raise _problem(error) from error


def _policy_etag(service: Service, job: str) -> str:
    live = service.jobs.get(job)
    return _HOME_ETAG if live is None else live.shown.etag


def _answer(answer: Any) -> Response:
    return Response(msgspec.json.encode(answer), status_code=202, media_type=JSON)


def _problem(error: ReportError) -> ProblemError:
    status = 400 if error.reason == "malformed" else 422
    return ProblemError(status, str(error), field=error.field)
