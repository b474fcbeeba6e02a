"""Probes, metrics and the pages.

Probes say the time, so that whoever asks can tell how far its clock is off.
"""

from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from prometheus_client import exposition

import libra.dashboard
from libra.balancer.problems import RETRY_AFTER_S, ProblemError
from libra.balancer.requests import ServiceDep, json_response
from libra.balancer.service import Service

router = APIRouter(tags=["site"])

STATIC = Path(libra.dashboard.__file__).parent / "static"


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Answer while the event loop runs.")
async def livez(service: ServiceDep) -> Response:
    return _well(service)


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Answer 200 while reports can be taken.")
async def readyz(service: ServiceDep, request: Request) -> Response:
    reason = service.not_ready()
    if reason is not None:
        raise ProblemError(503, reason, headers={"Retry-After": str(RETRY_AFTER_S)})
    # Those who have a token are served as before, so this is no reason to send them elsewhere.
    fault = request.app.state.gate.identity.fault
    return _well(service, [*service.warnings, *([fault] if fault else [])])


async def metrics(request: Request) -> Response:
    _, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
    zipped = "gzip" in request.headers.get("accept-encoding", "")
    try:
        body = await request.app.state.metrics.read(
            openmetrics=content_type.startswith("application/openmetrics-text"), zipped=zipped
        )
    except TimeoutError:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        raise ProblemError(503, "the metrics took too long", headers=headers) from None
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    return Response(body, headers=headers | ({"Content-Encoding": "gzip"} if zipped else {}))


# A plain route answers HEAD as well; FastAPI describes its own routes only.
router.add_route("/metrics", metrics, methods=["GET"], include_in_schema=False)
PATHS = {
    "/metrics": {
        "get": {
            "tags": ["site"],
            "summary": "Show the metrics to Prometheus.",
            "operationId": "metrics",
        }
    }
}


@router.head("/docs", include_in_schema=False)
@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return FileResponse(STATIC / "docs.html")


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def index() -> Response:
    return FileResponse(STATIC / "index.html")


def _well(service: Service, warnings: Sequence[str] = ()) -> Response:
    return json_response({"status": "ok", "time": service.now_s(), "warnings": warnings})
