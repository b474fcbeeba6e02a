"""What routes share: the service and the job of a request, its body, and JSON answers."""

import asyncio
import re
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Path, Request, Response

from libra.balancer.access_principal import Principal
from libra.balancer.live_job import LiveJob
from libra.balancer.problems import ProblemError
from libra.balancer.service import Service

Body = TypeVar("Body")

# Handlers and dependencies are coroutines, all of them: FastAPI would run plain functions in
# threads, and the service belongs to the event loop's.


async def get_service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


ServiceDep = Annotated[Service, Depends(get_service)]


async def get_live_job(service: ServiceDep, job: Annotated[str, Path()]) -> LiveJob:
    live = await service.find(job)
    if live is None:
        raise ProblemError(404, "no report of this job has arrived", field="job")
    return live


LiveJobDep = Annotated[LiveJob, Depends(get_live_job)]


def author_of(request: Request, claimed: str) -> str:
    """Return whose name a decision gets in the history: the sender's, where it is known."""
    principal = getattr(request.state, "principal", None)
    return principal.author(claimed) if isinstance(principal, Principal) else claimed


def json_schema(name: str) -> dict[str, Any]:
    """Return what tells OpenAPI that a route takes this schema's JSON."""
    schema = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    return {"requestBody": {"required": True, "content": {"application/json": schema}}}


def json_response(view: Any) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limit_bytes: int, timeout_s: float) -> bytes:
    """Return the body; refuse one that is too large or too slow before all of it is here."""
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit_bytes:
                    raise ProblemError(413, f"the body is larger than {limit_bytes} bytes")
    except TimeoutError:
        raise ProblemError(408, f"the body did not arrive within {timeout_s:g} s") from None
    return bytes(body)


async def read_json(request: Request, service: Service, expected: type[Body]) -> Body:
    """Return the JSON body; refuse another content type, and name the field at fault."""
    if content_type(request) != "application/json":
        raise ProblemError(415, "the content type must be application/json")
    limit_bytes = service.settings.body_limit_bytes
    body = await read_body(request, limit_bytes, service.settings.body_timeout_s)
    try:
        return msgspec.json.decode(body, type=expected)
    except msgspec.ValidationError as error:
        raise ProblemError(422, str(error), field=_place(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProblemError(400, str(error), field="$") from error


def _place(error: msgspec.ValidationError) -> str:
    """Return the place in the body that msgspec's message names, the whole body if none."""
    found = re.search(r"`(\$[^`]*)`$", str(error))
    unknown = re.search(r"unknown field `([^`]+)`", str(error))
    place = found[1] if found else "$"
    return f"{place}.{unknown[1]}" if unknown else place
