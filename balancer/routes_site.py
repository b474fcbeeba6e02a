"""Probes, metrics and the pages."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from prometheus_client import exposition

import libra.dashboard
from libra.balancer.problems import ProblemError
from libra.balancer.requests import ServiceDep, json_response

router = APIRouter(tags=["site"])

STATIC = Path(libra.dashboard.__file__).parent / "static"


@router.get("/livez", summary="Answer while the event loop runs.")
async def livez() -> Response:
    return json_response({"status": "ok"})


@router.get("/readyz", summary="Answer 200 while reports can be taken.")
async def readyz(service: ServiceDep) -> Response:
    if service.closing:
        raise ProblemError(503, "the balancer is stopping")
    if service.store.full:
        raise ProblemError(503, "too many reports wait for the disk")
    if not service.store.healthy:
        raise ProblemError(503, "the last write to the store failed")
    return json_response({"status": "ok"})


@router.get("/metrics", summary="Show the metrics to Prometheus.", response_class=Response)
async def metrics(request: Request) -> Response:
    encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.registry), headers={"Content-Type": content_type})


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return FileResponse(STATIC / "docs.html")


@router.get("/", include_in_schema=False)
async def index() -> Response:
    return FileResponse(STATIC / "index.html")
