"""The balancer's HTTP application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libra.balancer import routes_jobs, routes_live, routes_reports, routes_site
from libra.balancer.drafts import PolicyDraft, RollbackRequest
from libra.balancer.metrics import ServiceCollector
from libra.balancer.problems import PROBLEM_RESPONSES, Problem, handle_problems
from libra.balancer.service import Service
from libra.balancer.version import libra_version
from libra.balancer.wire import Report

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class SafeHeaders:
    """Add the headers that keep browsers strict to every answer, streams included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # Without a word on it browsers keep modules of the version before an upgrade.
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        await self.app(scope, receive, send_safely if scope["type"] == "http" else send)


def create_app(service: Service) -> FastAPI:
    """Return the application of a service; its end closes the service's store."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.end_streams()
        service.store.close()

    app = FastAPI(
        title="Libra",
        summary="What a training job's ranks report, and the policies they get.",
        version=libra_version(),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEM_RESPONSES,
    )
    app.state.service = service
    app.state.registry = CollectorRegistry()
    app.state.registry.register(ServiceCollector(service))
    app.add_middleware(SafeHeaders)
    handle_problems(app)
    for module in (routes_reports, routes_jobs, routes_live, routes_site):
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=routes_site.STATIC), name="static")
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Let the OpenAPI page include the schemas of bodies that msgspec decodes."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, summary=app.summary, version=app.version, routes=app.routes
            )
            _, bodies = msgspec.json.schema_components(
                [
                    *(Report, routes_reports.Accepted, Problem),
                    *(routes_jobs.ModeChange, PolicyDraft, RollbackRequest),
                ],
                ref_template="#/components/schemas/{name}",
            )
            schema.setdefault("components", {}).setdefault("schemas", {}).update(bodies)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
